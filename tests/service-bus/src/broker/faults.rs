//! What goes wrong on demand: tests lay faults down here, and the broker picks them up at the
//! request or frame that they are for, in the order in which they were laid down.

use std::time::Duration;

/// Where something may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The opening of a connection.
    Open,
    /// The beginning of a session.
    Begin,
    /// A token put to `$cbs`.
    PutToken,
    /// The attaching of a link.
    Attach,
    /// A message that is sent to a queue.
    Send,
    /// A message that is delivered. Of the acts: `Cut`, `CutAfter` and `Detach`.
    Deliver,
    /// A drain that a link is asked for. Of the acts: `Ignore`.
    Drain,
    /// A disposition on a link.
    Settle,
    /// `com.microsoft:renew-lock`
    RenewLock,
    /// `com.microsoft:update-disposition`
    UpdateDisposition,
    /// `com.microsoft:renew-session-lock`
    RenewSession,
    /// `com.microsoft:set-session-state`
    SetState,
    /// Any other request to `$management`.
    OtherRequest,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is not done, and the client is told so.
    Refuse {
        /// The status of an answer to a request.
        status: u16,
        /// The condition, such as `com.microsoft:server-busy`.
        condition: String,
        /// The text.
        text: String,
    },
    /// It is not done, and nothing is said.
    Ignore,
    /// It is done, and the answer is lost.
    Lose,
    /// It is done at once, and the answer comes late.
    Delay(Duration),
    /// It is done late, and answered then.
    Hold(Duration),
    /// It is done, and answered twice.
    Duplicate,
    /// It is done, and the answer comes behind the next answer on this connection: a client that
    /// pairs answers with requests by their order is off by one.
    Shift,
    /// It is done, and the answer names no request (of answers to requests only).
    Uncorrelated,
    /// It is not done, and the connection is cut.
    Cut,
    /// It is done, and the connection is cut instead of an answer.
    CutAfter,
    /// It is not done (a delivery is), and the link is detached by force.
    Detach {
        /// The condition, such as `amqp:link:detach-forced`.
        condition: String,
    },
    /// It is done, and the connection is frozen before the answer.
    Freeze,
    /// It is done, and these bytes are sent instead of the answer (not of a delivery).
    Bytes(Vec<u8>),
}

impl Act {
    /// What an overloaded namespace says.
    #[must_use]
    pub fn server_busy() -> Self {
        Self::Refuse {
            status: 503,
            condition: "com.microsoft:server-busy".into(),
            text: "The request was terminated because the namespace is being throttled. \
                   Please wait 4 seconds and try again."
                .into(),
        }
    }

    /// What is said of a lock that is no more.
    #[must_use]
    pub fn lock_lost() -> Self {
        Self::Refuse {
            status: 410,
            condition: super::LOCK_LOST.into(),
            text: super::LOCK_LOST_TEXT.into(),
        }
    }

    /// What is said of a token that does not do.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::Refuse {
            status: 401,
            condition: "amqp:unauthorized-access".into(),
            text: "InvalidSignature: The token has an invalid signature.".into(),
        }
    }
}

/// A fault that waits for its moment.
#[derive(Clone, Debug)]
pub struct Fault {
    on: On,
    act: Act,
    address: Option<String>,
    skip: u32,
    times: u32,
}

impl Fault {
    /// At the next occasion, once, on any queue.
    #[must_use]
    pub fn new(on: On, act: Act) -> Self {
        Self {
            on,
            act,
            address: None,
            skip: 0,
            times: 1,
        }
    }

    /// Only on this queue.
    #[must_use]
    pub fn at(mut self, address: &str) -> Self {
        self.address = Some(address.to_ascii_lowercase());
        self
    }

    /// Not on the first occasions.
    #[must_use]
    pub fn after(mut self, occasions: u32) -> Self {
        self.skip = occasions;
        self
    }

    /// That often; `u32::MAX` for ever.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// All faults that wait.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The act for this occasion, if one waits for it.
    pub(crate) fn next(&mut self, on: On, address: &str) -> Option<Act> {
        let mut found = None;
        for fault in &mut self.0 {
            let here = fault.on == on && fault.address.as_ref().is_none_or(|at| at == address);
            if !here || fault.times == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if fault.times != u32::MAX {
                fault.times -= 1;
            }
            found = Some(fault.act.clone());
            break;
        }
        self.0.retain(|fault| fault.times > 0);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_in_order_and_as_often_as_was_said() {
        let mut faults = Faults::default();
        faults.add(Fault::new(On::RenewLock, Act::Lose).at("Jobs").after(1));
        faults.add(Fault::new(On::RenewLock, Act::Cut).times(2));
        assert_eq!(faults.next(On::Settle, "jobs"), None);
        assert_eq!(faults.next(On::RenewLock, "other"), Some(Act::Cut));
        assert_eq!(faults.next(On::RenewLock, "jobs"), Some(Act::Cut));
        assert_eq!(faults.next(On::RenewLock, "jobs"), Some(Act::Lose));
        assert_eq!(faults.next(On::RenewLock, "jobs"), None);
    }
}
