//! The doorbell: the holder rings, standbys listen, over a TCP connection that decides nothing.
//!
//! A standby connects to the address in the holder's record. Each side sends one half of the record's nonce, to
//! prove that it has read it. The holder then sends a byte a second, one when it drains and one when the store
//! has taken its lease back, and reads nothing more. [`crate::core::doorbell`] decides what a ring means: no step
//! towards control waits for anything here.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as Bound};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::sockopt::{ReuseAddr, TcpUserTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock::Instant;
use crate::core::{Bell, Ring};
use crate::util::lock;

const BEAT: Duration = Duration::from_secs(1);
/// Silence after which a holder counts as dead, and the limit for connecting and the greeting.
const SILENCE: Duration = Duration::from_secs(3);
const MOST: usize = 1024;
/// Most unidentified connections. The oldest gives way: a port scan must not keep a standby out.
const MOST_STRANGERS: usize = 64;
/// Bytes a second that a standby accepts: a holder sends one, and two more at its end.
const MOST_BYTES: usize = 16;
/// Time without an acknowledgement after which the kernel gives up a standby, and its rank is free.
const GONE_MS: u32 = 10_000;

const ALIVE: u8 = b'.';
const DRAINING: u8 = b'd';
const RELEASED: u8 = b'r';

/// Configured address of a doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorbellAddress {
    /// `None`: the address from which this machine reaches the store.
    pub ip: Option<IpAddr>,
    /// 0: the kernel chooses.
    pub port: u16,
}

impl DoorbellAddress {
    fn towards(self, service: Option<&str>) -> io::Result<SocketAddr> {
        let ip = match self.ip {
            Some(ip) => ip,
            None => own_address(service)?,
        };
        Ok(SocketAddr::new(ip, self.port))
    }
}

impl fmt::Display for DoorbellAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) if self.port == 0 => ip.fmt(f),
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => f.write_str("auto"),
        }
    }
}

/// Splits the nonce into the halves that a standby and the holder send. Neither learns from the other the half
/// that it must send itself.
fn halves(nonce: u128) -> ([u8; 8], [u8; 8]) {
    let bytes = nonce.to_be_bytes();
    let (first, second) = bytes.split_at(8);
    let mut halves = ([0; 8], [0; 8]);
    halves.0.copy_from_slice(first);
    halves.1.copy_from_slice(second);
    halves
}

type Ranks = Vec<Option<std::net::TcpStream>>;

/// Doorbell of one instance: rings, or listens to the holder's.
#[derive(Debug)]
pub struct Doorbell {
    own: Bell,
    /// Listening for the instance's whole life: no other user may listen there.
    place: Bound,
    loss_is_told: bool,
    serving: Option<(Arc<Mutex<Ranks>>, JoinHandle<()>)>,
    listening: Option<(Bell, JoinHandle<()>)>,
    heard: UnboundedSender<(Bell, Ring)>,
    rings: UnboundedReceiver<(Bell, Ring)>,
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.close();
        self.attend(None);
    }
}

/// Reason why a doorbell cannot have its address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unbound {
    /// The machine refuses it now; it may not later.
    Machine(String),
    Setting(String),
}

impl fmt::Display for Unbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unbound::Machine(why) | Unbound::Setting(why)) = self;
        f.write_str(why)
    }
}

impl Doorbell {
    /// Reserves the address, and accepts no connection yet. `service` is the host of the store.
    pub(crate) fn bind(
        wanted: DoorbellAddress,
        service: Option<&str>,
    ) -> Result<Doorbell, Unbound> {
        let found = wanted.towards(service);
        let bound = found.and_then(Doorbell::at);
        let bound = bound.map_err(|why| match why.kind() {
            io::ErrorKind::AddrInUse => {
                format!("--doorbell {wanted}: it is in use: name another port, or none")
            }
            io::ErrorKind::AddrNotAvailable => format!(
                "--doorbell {wanted}: this machine has no such address: name one that it has"
            ),
            _ => format!("--doorbell {wanted}: {why}: name an address of this machine"),
        });
        let bound = bound.map_err(Unbound::Machine)?;
        // An address that was not typed only gets a warning: see `warn`.
        if wanted.ip.is_some() && !bound.own.is_near() {
            return Err(Unbound::Setting(format!(
                "--doorbell {wanted}: standbys connect to private addresses only: name one of this machine"
            )));
        }
        Ok(bound)
    }

    pub(crate) fn warn(&self) {
        let address = self.own.address;
        if !self.own.is_near() {
            tracing::warn!(
                "no standby will hear the doorbell at {address}: standbys connect to private addresses only: \
                 name one with --doorbell=ADDR"
            );
        }
    }

    fn at(address: SocketAddr) -> io::Result<Doorbell> {
        let place = bound(address)?;
        let address = place.local_addr()?;
        let nonce = azure_core::Uuid::new_v4().as_u128();
        let (heard, rings) = mpsc::unbounded_channel();
        Ok(Doorbell {
            own: Bell { address, nonce },
            place,
            loss_is_told: false,
            serving: None,
            listening: None,
            heard,
            rings,
        })
    }

    pub(crate) fn bell(&self) -> Bell {
        self.own
    }

    /// Starts to accept standbys. On an error, all of them poll.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        self.attend(None);
        self.close();
        let place = self.place.try_clone()?;
        place.set_nonblocking(true)?;
        // Drop connections that came too early: those standbys connect again.
        let _ = (0..MOST).take_while(|_| place.accept().is_ok()).count();
        let listener = TcpListener::from_std(place)?;
        let ranks = Arc::default();
        let task = tokio::spawn(serve(listener, self.own.nonce, Arc::clone(&ranks)));
        self.serving = Some((ranks, task));
        Ok(())
    }

    pub(crate) fn open_or_warn(&mut self) {
        if let Err(why) = self.open()
            && !std::mem::replace(&mut self.loss_is_told, true)
        {
            tracing::warn!(
                "no standby hears the doorbell at {}: {why}; standbys find control by --poll: \
                 raise the limit of open files",
                self.own.address
            );
        }
    }

    pub(crate) fn draining(&self) {
        self.ring(DRAINING);
    }

    pub(crate) fn released(&mut self) {
        self.ring(RELEASED);
        self.close();
    }

    // Written here, not by the task: the process may end before the task runs again.
    fn ring(&self, word: u8) {
        if let Some((ranks, _)) = &self.serving {
            tell(&mut lock(ranks), word);
        }
    }

    pub(crate) fn close(&mut self) {
        if let Some((ranks, task)) = self.serving.take() {
            task.abort();
            // The task holds the connections until the runtime drops it.
            lock(&ranks).clear();
        }
    }

    /// Listens to this bell only, and connects again if the last attempt has ended.
    pub(crate) fn attend(&mut self, bell: Option<Bell>) {
        if let Some((present, task)) = &self.listening {
            if Some(*present) == bell && !task.is_finished() {
                return;
            }
            task.abort();
        }
        self.listening = bell.map(|bell| {
            let heard = self.heard.clone();
            (bell, tokio::spawn(listen_to(bell, heard)))
        });
    }

    /// Returns the next ring. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Ring {
        loop {
            match self.rings.recv().await {
                Some((bell, ring)) if self.listening.as_ref().is_some_and(|l| l.0 == bell) => {
                    return ring;
                }
                // A ring of a bell that was attended earlier.
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Returns the address by which this machine reaches `host`. Nothing may wait for DNS, so a name is assumed to
/// lie beyond the default route.
fn own_address(host: Option<&str>) -> io::Result<IpAddr> {
    // Ranges reserved for documentation.
    const AFAR: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    ];
    let host = host.map(|host| host.trim_matches(['[', ']']));
    if host == Some("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    if let Some(ip) = host.and_then(|host| host.parse().ok()) {
        return address_towards(ip);
    }
    AFAR.into_iter()
        .find_map(|afar| address_towards(afar).ok())
        .ok_or_else(|| io::Error::other("no network: pass --doorbell=ADDR"))
}

/// Returns the local address of the route, without sending a packet.
fn address_towards(service: IpAddr) -> io::Result<IpAddr> {
    let service = SocketAddr::new(service, 9);
    let any: SocketAddr = match service {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let probe = std::net::UdpSocket::bind(any)?;
    probe.connect(service)?;
    Ok(probe.local_addr()?.ip())
}

fn bound(address: SocketAddr) -> io::Result<Bound> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let place = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Connections of an earlier tenure must not block the port.
    setsockopt(&place, ReuseAddr, &true)?;
    bind(place.as_raw_fd(), &SockaddrStorage::from(address))?;
    // At once: with SO_REUSEADDR another user could listen on a port that is only bound.
    listen(&place, Backlog::MAXCONN)?;
    Ok(Bound::from(place))
}

/// Returns how many standbys and unidentified connections leave enough descriptors to the store and the log.
fn room(descriptors: u64) -> (usize, usize) {
    let share =
        |part: u64, most: usize| usize::try_from(descriptors / part).map_or(most, |n| n.min(most));
    (share(4, MOST), share(16, MOST_STRANGERS).max(1))
}

async fn serve(listener: TcpListener, nonce: u128, ranks: Arc<Mutex<Ranks>>) {
    // An unknown limit counts as a small one.
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let (most, most_strangers) = room(descriptors);
    let mut strangers = JoinSet::new();
    let mut order: VecDeque<AbortHandle> = VecDeque::new();
    let (known, mut standbys) = mpsc::channel(MOST_STRANGERS);
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Without a standby no beat wakes the process.
        let heard = lock(&ranks).iter().any(Option::is_some);
        tokio::select! {
            // The beat first: neither a flood of connections nor a lack of descriptors may silence it.
            biased;
            _ = beat.tick(), if heard => tell(&mut lock(&ranks), ALIVE),
            Some(standby) = standbys.recv() => admit(&mut lock(&ranks), standby, nonce, most),
            accepted = listener.accept() => {
                let Ok((stranger, _)) = accepted else {
                    // Mostly no descriptor is left. Connections wait in the kernel's queue.
                    tokio::time::sleep(BEAT).await;
                    continue;
                };
                while strangers.try_join_next().is_some() {}
                order.retain(|task| !task.is_finished());
                if order.len() >= most_strangers
                    && let Some(oldest) = order.pop_front()
                {
                    oldest.abort();
                }
                order.push_back(strangers.spawn(identify(stranger, nonce, known.clone())));
            }
        }
    }
}

async fn identify(mut stranger: TcpStream, nonce: u128, known: mpsc::Sender<TcpStream>) {
    let mut said = [0; 8];
    let read = timeout(SILENCE, stranger.read_exact(&mut said)).await;
    if matches!(read, Ok(Ok(_))) && said == halves(nonce).0 {
        let _ = known.send(stranger).await;
    }
}

fn admit(ranks: &mut Ranks, standby: TcpStream, nonce: u128, most: usize) {
    let free = ranks.iter().position(Option::is_none);
    let rank = free.unwrap_or(ranks.len());
    if rank >= most {
        return;
    }
    let Ok(number) = u32::try_from(rank) else {
        return;
    };
    // Otherwise a standby that loses power keeps its rank for a quarter of an hour.
    let _ = setsockopt(&standby, TcpUserTimeout, &GONE_MS);
    let _ = standby.set_nodelay(true);
    let Ok(mut standby) = standby.into_std() else {
        return;
    };
    let greeting = greeting(nonce, number);
    // A new connection's buffer has room for it.
    if !matches!(standby.write(&greeting), Ok(12)) {
        return;
    }
    if rank == ranks.len() {
        ranks.push(None);
    }
    ranks[rank] = Some(standby);
}

/// Returns what a holder sends first to the standby of this rank.
#[must_use]
pub fn greeting(nonce: u128, rank: u32) -> [u8; 12] {
    let mut greeting = [0; 12];
    greeting[..8].copy_from_slice(&halves(nonce).1);
    greeting[8..].copy_from_slice(&rank.to_be_bytes());
    greeting
}

/// Returns the rank in a [`greeting`], or `None` if it is for another nonce.
#[must_use]
pub fn rank_in(greeting: [u8; 12], nonce: u128) -> Option<u32> {
    let (half, rank) = greeting.split_first_chunk::<8>()?;
    let rank = <[u8; 4]>::try_from(rank).ok()?;
    (*half == halves(nonce).1).then_some(u32::from_be_bytes(rank))
}

/// Reads a holder's bytes, and returns the ring that ends the connection, if any.
pub fn understand(words: &[u8], mut tell: impl FnMut(Ring)) -> Option<Ring> {
    for word in words {
        match *word {
            ALIVE => {}
            DRAINING => tell(Ring::Draining),
            RELEASED => return Some(Ring::Released),
            _ => return Some(Ring::Silent),
        }
    }
    None
}

/// Sends without waiting. A standby that does not take the byte loses its rank.
fn tell(ranks: &mut Ranks, word: u8) {
    for rank in ranks {
        if rank
            .as_mut()
            .is_some_and(|standby| standby.write(&[word]).is_err())
        {
            *rank = None;
        }
    }
}

async fn listen_to(bell: Bell, heard: UnboundedSender<(Bell, Ring)>) {
    let last = hear(bell, &heard).await;
    let _ = heard.send((bell, last));
}

async fn hear(bell: Bell, heard: &UnboundedSender<(Bell, Ring)>) -> Ring {
    let greeted = timeout(SILENCE, greet(bell)).await;
    let Ok(Ok((mut holder, rank))) = greeted else {
        return Ring::Silent;
    };
    let _ = heard.send((bell, Ring::Greeted { rank }));
    let mut second = Instant::now();
    let mut count = 0;
    loop {
        let mut words = [0; MOST_BYTES];
        let read = match timeout(SILENCE, holder.read(&mut words)).await {
            Err(_) => return Ring::Silent,
            Ok(Err(_) | Ok(0)) => return Ring::Closed,
            Ok(Ok(read)) => read,
        };
        if Instant::now().since(second) >= BEAT {
            second = Instant::now();
            count = 0;
        }
        count += read;
        if count > MOST_BYTES {
            return Ring::Silent;
        }
        let told = understand(&words[..read], |ring| {
            let _ = heard.send((bell, ring));
        });
        if let Some(last) = told {
            return last;
        }
    }
}

async fn greet(bell: Bell) -> io::Result<(TcpStream, u32)> {
    let mut holder = TcpStream::connect(bell.address).await?;
    holder.write_all(&halves(bell.nonce).0).await?;
    let mut greeting = [0; 12];
    holder.read_exact(&mut greeting).await?;
    let rank = rank_in(greeting, bell.nonce).ok_or_else(|| io::Error::other("another has it"))?;
    Ok((holder, rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Doorbell {
        Doorbell::at(([127, 0, 0, 1], 0).into()).expect("a port")
    }

    #[tokio::test]
    async fn a_standby_is_greeted_by_its_rank_and_hears_what_the_holder_says() {
        let (mut holder, mut first, mut second) = (here(), here(), here());
        holder.open().expect("listens");
        first.attend(Some(holder.bell()));
        assert_eq!(first.next().await, Ring::Greeted { rank: 0 });
        second.attend(Some(holder.bell()));
        assert_eq!(second.next().await, Ring::Greeted { rank: 1 });
        holder.draining();
        assert_eq!(first.next().await, Ring::Draining);
        assert_eq!(second.next().await, Ring::Draining);
        holder.released();
        assert_eq!(first.next().await, Ring::Released);
        assert_eq!(second.next().await, Ring::Released);
    }

    #[tokio::test]
    async fn doorbell_is_silent_until_opened_and_can_open_again() {
        let (mut holder, mut standby) = (here(), here());
        standby.attend(Some(holder.bell()));
        assert_eq!(standby.next().await, Ring::Silent);
        for _ in 0..3 {
            holder.open().expect("listens");
            standby.attend(Some(holder.bell()));
            assert_eq!(standby.next().await, Ring::Greeted { rank: 0 });
            holder.close();
            assert_eq!(standby.next().await, Ring::Closed);
        }
    }

    #[tokio::test]
    async fn an_address_in_use_is_refused() {
        let holder = here();
        // SO_REUSEADDR lets no other program listen there, even while the bell is not open.
        let taken = Doorbell::at(holder.bell().address).expect_err("in use");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let Bell { address, .. } = holder.bell();
        let wanted = DoorbellAddress {
            ip: Some(address.ip()),
            port: address.port(),
        };
        let refusal = Doorbell::bind(wanted, None).expect_err("in use");
        assert!(
            refusal.to_string().contains(&address.to_string())
                && refusal.to_string().contains("in use")
        );
        let stranger = DoorbellAddress {
            ip: Some([192, 0, 2, 7].into()),
            port: 0,
        };
        let refusal = Doorbell::bind(stranger, None).expect_err("not ours");
        assert!(refusal.to_string().contains("no such address"), "{refusal}");
    }

    #[tokio::test]
    async fn another_program_on_the_port_is_not_heard() {
        let (mut stranger, mut standby) = (here(), here());
        stranger.open().expect("listens");
        let bell = Bell {
            nonce: 1,
            ..stranger.bell()
        };
        standby.attend(Some(bell));
        assert_eq!(standby.next().await, Ring::Silent);
        // A holder that knows the standby's half and not its own.
        let (ours, _) = halves(stranger.bell().nonce);
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&ours);
        let bell = Bell {
            nonce: u128::from_be_bytes(nonce),
            ..stranger.bell()
        };
        standby.attend(Some(bell));
        assert_eq!(standby.next().await, Ring::Silent);
    }

    #[tokio::test]
    async fn a_thousand_idle_connections_do_not_keep_a_standby_out() {
        let (mut holder, mut standby) = (here(), here());
        holder.open().expect("listens");
        let mut idle = Vec::new();
        for _ in 0..1000 {
            idle.push(TcpStream::connect(holder.bell().address).await.expect("in"));
        }
        standby.attend(Some(holder.bell()));
        assert_eq!(standby.next().await, Ring::Greeted { rank: 0 });
    }

    /// Greets correctly, then repeats `words`.
    async fn liar(words: &'static [u8]) -> Bell {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let bell = Bell {
            address: listener.local_addr().expect("an address"),
            nonce: 9,
        };
        tokio::spawn(async move {
            let (mut standby, _) = listener.accept().await.expect("a standby");
            let mut greeting = halves(9).1.to_vec();
            greeting.extend_from_slice(&[0; 4]);
            standby.write_all(&greeting).await.expect("said");
            while !words.is_empty() && standby.write_all(words).await.is_ok() {}
            std::future::pending::<()>().await;
        });
        bell
    }

    #[tokio::test]
    async fn holder_that_sends_too_much_counts_as_silent() {
        for words in [&b"................................"[..], b"x", &[0; 65_536]] {
            let mut standby = here();
            standby.attend(Some(liar(words).await));
            assert_eq!(standby.next().await, Ring::Greeted { rank: 0 });
            assert_eq!(standby.next().await, Ring::Silent);
        }
    }

    #[tokio::test]
    async fn holder_that_stops_sending_counts_as_silent() {
        let mut standby = here();
        standby.attend(Some(liar(b"").await));
        assert_eq!(standby.next().await, Ring::Greeted { rank: 0 });
        assert_eq!(standby.next().await, Ring::Silent);
    }

    #[test]
    fn connections_leave_most_descriptors_to_others() {
        assert_eq!(room(20_000), (MOST, MOST_STRANGERS));
        assert_eq!(room(1024), (256, 64));
        assert_eq!(room(32), (8, 2));
        assert_eq!(room(0), (0, 1));
    }

    #[test]
    fn named_address_that_no_standby_connects_to_is_refused() {
        let bind = |ip: &str| {
            let ip = Some(ip.parse().expect("an address"));
            Doorbell::bind(DoorbellAddress { ip, port: 0 }, None).map(|_| ())
        };
        let why = bind("0.0.0.0").unwrap_err();
        let words = "--doorbell 0.0.0.0: standbys connect to private addresses only";
        assert!(why.to_string().contains(words), "{why}");
        assert_eq!(bind("127.0.0.1"), Ok(()));
    }

    #[test]
    fn own_address_follows_the_route_to_the_store() {
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            assert!(
                own_address(Some(host)).expect("a way").is_loopback(),
                "{host}"
            );
        }
    }
}
