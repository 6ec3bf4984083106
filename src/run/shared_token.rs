//! The present token of Entra ID, for the guardian that gives the lease back after our death.
//!
//! Called before the guardian is forked. What the token is written to is memory of this process and
//! of those forked from it: it never reaches a command line, an environment or a file, and the
//! command, which is another program, does not have it.
//!
//! The guardian could ask for a token of its own, and does where there is none here. But where the
//! issuer is away or slow just then, the death of the supervisor would cost a whole lease instead of
//! seconds; and a shared drive's lease needs the same memory, so little would be spared.

use std::sync::Arc;

use crate::azure::Account;
use crate::guardian::SharedBytes;

/// The account, with a token that the guardian will have too.
pub(super) fn handed_on(account: Account) -> Account {
    account.with_shared_token(|| match SharedBytes::new() {
        Ok(shared) => Some(Arc::new(shared)),
        Err(why) => {
            tracing::warn!(
                "the guardian will have no token of its own ({why}): should we die, it asks for one"
            );
            None
        }
    })
}
