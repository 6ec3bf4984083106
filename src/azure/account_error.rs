//! Why no account could be made of what was given.
//!
//! Made by the account and what it is made of, read by people. Must never hold a secret: it names
//! variables and parts, not values.

/// Why no account could be made of what was given. One line each, what to do included.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// Something is not there.
    #[error("{part} is missing: {advice}")]
    Missing {
        /// What.
        part: String,
        /// Where it could come from.
        advice: String,
    },
    /// Something cannot be read.
    #[error("{what} {why}")]
    Malformed {
        /// The variable, or the part of the connection string.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two sources say different things.
    #[error("{first} and {second} contradict each other ({about}): unset one of them")]
    Contradiction {
        /// One source.
        first: String,
        /// The other.
        second: String,
        /// What they differ in.
        about: String,
    },
    /// Plain http to another machine: everyone on the way could take the lock.
    #[error("plain http is only allowed to this machine, not to {host}: use https")]
    PlainHttp {
        /// The host.
        host: String,
    },
}

pub(super) fn malformed(what: impl Into<String>, why: impl Into<String>) -> AccountError {
    AccountError::Malformed {
        what: what.into(),
        why: why.into(),
    }
}

pub(super) fn missing(part: impl Into<String>, advice: impl Into<String>) -> AccountError {
    AccountError::Missing {
        part: part.into(),
        advice: advice.into(),
    }
}

pub(super) fn contradiction(
    first: impl Into<String>,
    second: impl Into<String>,
    about: impl Into<String>,
) -> AccountError {
    AccountError::Contradiction {
        first: first.into(),
        second: second.into(),
        about: about.into(),
    }
}
