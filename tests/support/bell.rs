//! A guest at a holder's doorbell that is none of the code under test: it says what a standby says, and
//! hears its rank.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{PATIENCE, await_for};

/// Where a holder rings, as its record says.
#[derive(Clone, Copy)]
pub(crate) struct Bell {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    nonce: u128,
}

impl Bell {
    /// # Panics
    /// Unless the text is ADDRESS:PORT, a blank and 32 digits.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Bell {
        let text = text.replace("%20", " ");
        let (address, digits) = text.split_once(' ').expect("two words");
        Bell {
            address: address.parse().expect("an address"),
            nonce: u128::from_str_radix(digits, 16).expect("a nonce"),
        }
    }

    /// What the holder answers to a standby of the first rank.
    #[must_use]
    pub(crate) fn answer(self) -> Vec<u8> {
        let mut answer = self.nonce.to_be_bytes()[8..].to_vec();
        answer.extend([0; 4]);
        answer
    }

    /// Connects, and says that it has read the record; it may not have been greeted yet.
    pub(crate) fn knock(self) -> io::Result<TcpStream> {
        let mut guest = TcpStream::connect(self.address)?;
        guest.write_all(&self.nonce.to_be_bytes()[..8])?;
        Ok(guest)
    }

    /// Waits to be greeted, which all who connected before have been then, or let go; with our rank.
    #[must_use]
    pub(crate) fn visit(self) -> (TcpStream, usize) {
        let mut guest = self.knock().expect("a holder listens");
        guest.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut greeting = [0; 12];
        guest.read_exact(&mut greeting).expect("greeted");
        let rank = u32::from_be_bytes([greeting[8], greeting[9], greeting[10], greeting[11]]);
        (guest, usize::try_from(rank).expect("small"))
    }

    /// Waits until somebody else than we listens to it.
    pub(crate) fn await_listener(self) {
        let mut ours = Vec::new();
        await_for(
            "a standby to listen",
            || {
                let (guest, rank) = self.visit();
                // As long as all before us are ours, nobody else is there.
                if rank != ours.len() {
                    return Some(());
                }
                ours.push(guest);
                // Fewer guests than a holder has room for, however long it takes.
                std::thread::sleep(Duration::from_millis(400));
                None
            },
            String::new,
        );
    }
}
