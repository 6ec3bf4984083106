//! A client of a holder's doorbell, independent of the code under test.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{WAIT_LIMIT, await_for};

#[derive(Clone, Copy)]
pub(crate) struct Bell {
    pub(crate) address: SocketAddr,
    nonce: u128,
}

impl Bell {
    /// # Panics
    ///
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

    /// Returns the greeting to a standby of the first rank.
    #[must_use]
    pub(crate) fn answer(self) -> Vec<u8> {
        let mut answer = self.nonce.to_be_bytes()[8..].to_vec();
        answer.extend([0; 4]);
        answer
    }

    /// Proves that it has read the record; the greeting may follow later.
    pub(crate) fn knock(self) -> io::Result<TcpStream> {
        let mut guest = TcpStream::connect(self.address)?;
        guest.write_all(&self.nonce.to_be_bytes()[..8])?;
        Ok(guest)
    }

    /// Waits for a rank, or for the end; all earlier clients were greeted by then.
    #[must_use]
    pub(crate) fn visit(self) -> (TcpStream, usize) {
        let mut guest = self.knock().expect("a holder listens");
        guest.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket");
        let mut greeting = [0; 12];
        guest.read_exact(&mut greeting).expect("greeted");
        let rank = u32::from_be_bytes([greeting[8], greeting[9], greeting[10], greeting[11]]);
        (guest, usize::try_from(rank).expect("small"))
    }

    /// Waits until another client listens.
    pub(crate) fn await_listener(self) {
        let mut ours = Vec::new();
        await_for(
            "a standby to listen",
            || {
                let (guest, rank) = self.visit();
                // While all clients before are this test's, there is no other.
                if rank != ours.len() {
                    return Some(());
                }
                ours.push(guest);
                // Fewer than a holder has room for, however long it takes.
                std::thread::sleep(Duration::from_millis(400));
                None
            },
            String::new,
        );
    }
}
