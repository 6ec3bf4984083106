//! Faults on demand: the broker applies each to the next matching request or frame, in the order of
//! their addition.

use std::time::Duration;

/// Occasion of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Opening of a connection.
    Open,
    /// Beginning of a session.
    Begin,
    /// Token put to `$cbs`.
    PutToken,
    /// Attaching of a link.
    Attach,
    /// Message sent to a queue.
    Send,
    /// Delivery; acts: `Cut`, `CutAfter` and `Detach`.
    Deliver,
    /// Drain of a link; acts: `Ignore`.
    Drain,
    /// Disposition on a link.
    Settle,
    /// `com.microsoft:renew-lock`
    RenewLock,
    /// `com.microsoft:update-disposition`
    UpdateDisposition,
    /// `com.microsoft:renew-session-lock`
    RenewSession,
    /// `com.microsoft:set-session-state`
    SetState,
    /// Other request to `$management`.
    OtherRequest,
}

/// Act of a fault: whether the request is done, and how it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Not done; refused with this error.
    Refuse {
        /// Status of an answer to a request.
        status: u16,
        /// Condition, such as `com.microsoft:server-busy`.
        condition: String,
        /// Text of the error.
        text: String,
    },
    /// Not done, and not answered.
    Ignore,
    /// Done; the answer is lost.
    Lose,
    /// Done at once; the answer is late.
    Delay(Duration),
    /// Done late, and answered then.
    Hold(Duration),
    /// Done, and answered twice.
    Duplicate,
    /// Done, and answered after the next answer: a client that pairs answers by order is off by
    /// one.
    Shift,
    /// Done, and answered without the request's id.
    Uncorrelated,
    /// Not done; the connection is cut.
    Cut,
    /// Done; the connection is cut instead of an answer.
    CutAfter,
    /// Not done (a delivery is); the link is detached by force.
    Detach {
        /// Condition, such as `amqp:link:detach-forced`.
        condition: String,
    },
    /// Done; the connection is frozen before the answer.
    Freeze,
    /// Done; these bytes replace the answer (not of a delivery).
    Bytes(Vec<u8>),
}

impl Act {
    /// Returns the refusal of an overloaded namespace.
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

    /// Returns the refusal for an ended lock.
    #[must_use]
    pub fn lock_lost() -> Self {
        Self::Refuse {
            status: 410,
            condition: super::LOCK_LOST.into(),
            text: super::LOCK_LOST_TEXT.into(),
        }
    }

    /// Returns the refusal for an insufficient token.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::Refuse {
            status: 401,
            condition: "amqp:unauthorized-access".into(),
            text: "InvalidSignature: The token has an invalid signature.".into(),
        }
    }
}

/// A fault that waits for its occasion.
#[derive(Clone, Debug)]
pub struct Fault {
    on: On,
    act: Act,
    address: Option<String>,
    skip: u32,
    times: u32,
}

impl Fault {
    /// Makes a fault for the next occasion, once, on any queue.
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

    /// Limits it to this queue.
    #[must_use]
    pub fn at(mut self, address: &str) -> Self {
        self.address = Some(address.to_ascii_lowercase());
        self
    }

    /// Skips this many occasions.
    #[must_use]
    pub fn after(mut self, occasions: u32) -> Self {
        self.skip = occasions;
        self
    }

    /// Repeats it; `u32::MAX` for ever.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

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
