//! What Azure announces for this virtual machine: freezes, reboots, redeployments, preemption and
//! termination, asked of the metadata service while we compete.
//!
//! Begun by the drivers inside the runtime, as a task of its own: the core hears through
//! [`Signals`](crate::signals::Signals) that the machine is cordoned, and tells by
//! [`Watch::aside`] that nothing of ours runs here any more. An endpoint that is missing, hangs or
//! talks nonsense changes nothing but the pace. It must never hold up or judge a lease.

mod document;
mod endpoint;

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use self::document::{Announced, Document};
pub use self::endpoint::{Endpoint, EndpointError};
use crate::clock::Instant;
use crate::core::Cordon;

/// From one look to the next, ±20 %: Azure asks for no more than one in a second, and the
/// shortest notice (of a preemption) is 30 seconds.
const PACE: Duration = Duration::from_secs(5);
/// The longest pause between two looks at an endpoint that has answered before.
const SHORT_PAUSE: Duration = Duration::from_secs(20);
/// The same where it never has: this may be no machine of Azure's.
const LONG_PAUSE: Duration = Duration::from_secs(300);
/// The least time between two looks, whatever there is to be said.
const LEAST: Duration = Duration::from_secs(1);

/// How the announcements are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where they are asked for.
    pub endpoint: Endpoint,
    /// What this machine is called in them; `None`: the metadata service is asked.
    pub vm_name: Option<String>,
    /// This machine's own name, taken where the metadata service does not tell.
    pub host: String,
    /// They are approved once nothing of ours runs here.
    pub ack: bool,
}

/// The announcements, as they come.
#[derive(Debug)]
pub struct Watch {
    /// This machine is cordoned (again, when what is known of it changes), or `None`: it is not any
    /// more. Nothing is said before there is something to say.
    pub words: mpsc::UnboundedReceiver<Option<Cordon>>,
    /// Whether nothing of ours runs here and nothing is held, because of what was said last.
    pub aside: watch::Sender<bool>,
    first: watch::Receiver<bool>,
}

impl Watch {
    /// Begins to follow them.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn begin(config: Config) -> Watch {
        let (say, words) = mpsc::unbounded_channel();
        let (aside, is_aside) = watch::channel(false);
        let (looked, first) = watch::channel(false);
        let follower = Follower {
            client: endpoint::Client::new(config.endpoint.clone()),
            config,
            say,
            aside: is_aside,
            looked,
            name: None,
            said: None,
            approved: Vec::new(),
            failures: 0,
            told: false,
            ever: false,
        };
        tokio::spawn(follower.follow());
        Watch {
            words,
            aside,
            first,
        }
    }

    /// Waits for the first look, but not for longer than `limit`: what was announced before we came
    /// is known before we compete.
    pub async fn first(&mut self, limit: Duration) -> Option<Cordon> {
        let looked = async {
            while !*self.first.borrow_and_update() {
                if self.first.changed().await.is_err() {
                    return;
                }
            }
        };
        let _in_time = timeout(limit, looked).await;
        self.words.try_recv().ok().flatten()
    }
}

struct Follower {
    client: endpoint::Client,
    config: Config,
    say: mpsc::UnboundedSender<Option<Cordon>>,
    aside: watch::Receiver<bool>,
    looked: watch::Sender<bool>,
    /// What the metadata service calls this machine, once it has told.
    name: Option<String>,
    /// What holds for this machine, as we said it last.
    said: Option<Announced>,
    /// The announcements that we approved.
    approved: Vec<String>,
    /// Looks in a row that came to nothing.
    failures: u32,
    /// People know of them.
    told: bool,
    /// The endpoint has answered.
    ever: bool,
}

impl Follower {
    async fn follow(mut self) {
        while !self.say.is_closed() {
            match self.look().await {
                Ok(()) => self.works(),
                Err(why) => self.fails(&why),
            }
            self.looked.send_replace(true);
            self.pause().await;
        }
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.told) {
            tracing::info!("the metadata service answers again");
        }
        (self.failures, self.ever) = (0, true);
    }

    fn fails(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if std::mem::replace(&mut self.told, true) {
            tracing::debug!("scheduled events: {why}");
        } else if self.said.is_some() {
            tracing::warn!("scheduled events cannot be had: {why}; cordoned until they can");
        } else {
            tracing::warn!(
                "scheduled events cannot be had: {why}; going on without them, and asking again now and then"
            );
        }
    }

    async fn pause(&mut self) {
        let most = if self.ever { SHORT_PAUSE } else { LONG_PAUSE };
        let pace = PACE.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        let span = pace.min(most).mul_f64(0.8 + 0.4 * fastrand::f64());
        // Whoever waits for our approval need not wait for our pace.
        let wants_approval = self.config.ack && self.failures == 0;
        let (least, span) = (span.min(LEAST), span.saturating_sub(LEAST));
        tokio::time::sleep(least).await;
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            Ok(()) = self.aside.changed(), if wants_approval => {}
        }
    }

    /// One look, and what follows from it.
    async fn look(&mut self) -> Result<(), String> {
        let (text, date) = self.client.events().await?;
        let document = Document::parse(&text)?;
        // Nobody is asked for a name that nothing depends on.
        if document.is_empty() {
            self.hears(None);
            return Ok(());
        }
        let name = self.name().await;
        let announced = document.announced_for(&name, Instant::now(), date);
        self.hears(announced);
        self.approve().await
    }

    async fn name(&mut self) -> String {
        if let Some(name) = self.config.vm_name.as_ref().or(self.name.as_ref()) {
            return name.clone();
        }
        match self.client.name().await {
            Ok(name) => {
                self.name = Some(name.clone());
                name
            }
            Err(why) => {
                tracing::debug!("the metadata service does not tell this machine's name: {why}");
                self.config.host.clone()
            }
        }
    }

    fn hears(&mut self, announced: Option<Announced>) {
        let same = |one: &Announced, other: &Announced| one.why == other.why;
        let is_news = match (&self.said, &announced) {
            (None, None) => false,
            (Some(one), Some(other)) => !same(one, other),
            (None, Some(_)) | (Some(_), None) => true,
        };
        if is_news {
            let cordon = announced.as_ref().map(|announced| Cordon {
                why: announced.why.clone(),
                before: announced.before,
            });
            // Nobody listens at the very end.
            let _ = self.say.send(cordon);
        }
        if announced.is_none() {
            self.approved.clear();
        }
        self.said = announced;
    }

    /// Approves what waits for that, once nothing of ours is in the way.
    async fn approve(&mut self) -> Result<(), String> {
        if !self.config.ack || !*self.aside.borrow_and_update() {
            return Ok(());
        }
        let Some(announced) = &self.said else {
            return Ok(());
        };
        let waiting = announced.waiting.iter();
        let waiting: Vec<String> = waiting
            .filter(|id| !self.approved.contains(id))
            .cloned()
            .collect();
        for id in waiting {
            self.client.approve(&id).await?;
            tracing::info!("approved what Azure announced for this machine (event {id})");
            self.approved.push(id);
        }
        Ok(())
    }
}
