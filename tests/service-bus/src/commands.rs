//! Commands on standard input: each calls the library's handle.

use std::time::Duration;

use service_bus_stand_in::{Act, Broker, Fault, Message, On, QueueSettings};

pub(crate) const HELP: &str = "\
  queue ADDRESS [lock=MS] [max=N] [sessions] [disabled]
  put ADDRESS TEXT             counts ADDRESS           journal
  fault ON ACT [at=ADDRESS] [after=N] [times=N]         clear
  cut                          freeze                   thaw
  refuse on|off                skew MS                  delete ADDRESS
  detach ADDRESS               lose-locks ADDRESS       disable|enable ADDRESS
  lose-sessions ADDRESS        detach-sessions ADDRESS

  ON   open begin put-token attach send deliver settle renew-lock
       update-disposition renew-session set-state other-request
  ACT  busy lock-lost unauthorized ignore lose delay=MS hold=MS duplicate shift uncorrelated
       cut cut-after detach=CONDITION refuse=CONDITION freeze
";

pub(crate) fn obey(broker: &Broker, line: &str) -> Result<String, String> {
    let (command, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let rest = rest.trim();
    match command {
        "queue" => {
            let mut words = rest.split_whitespace();
            let address = words.next().ok_or("queue needs an address")?;
            broker.create(address, queue(words)?);
        }
        "put" => {
            let (address, text) = rest
                .split_once(' ')
                .ok_or("put needs an address and a text")?;
            broker.put(address, Message::data(text.as_bytes()));
        }
        "counts" => {
            let address = rest.to_owned();
            let counts = broker.look(move |view| view.counts(&address));
            return Ok(format!(
                "ready={} locked={} deferred={}",
                counts.ready, counts.locked, counts.deferred
            ));
        }
        "journal" => {
            let events = broker.look(|view| {
                let all = view.journal().iter();
                all.map(|entry| format!("{:?}", entry.event))
                    .collect::<Vec<_>>()
            });
            return Ok(events.join("; "));
        }
        "fault" => broker.fault(fault(rest)?),
        "clear" => broker.clear_faults(),
        "cut" => broker.cut(),
        "freeze" => broker.freeze(),
        "thaw" => broker.thaw(),
        "refuse" => broker.refuse_connections(rest == "on"),
        "skew" => broker.skew(number(rest)?),
        "delete" => broker.delete(rest),
        "detach" => broker.detach(
            rest,
            "amqp:link:detach-forced",
            "The link is force detached.",
        ),
        "lose-sessions" => return Ok(broker.lose_sessions(rest).to_string()),
        "detach-sessions" => return Ok(broker.detach_sessions(rest).to_string()),
        "lose-locks" => return Ok(broker.lose_locks(rest).to_string()),
        "disable" | "enable" => broker.disable(rest, command == "disable"),
        other => return Err(format!("'{other}' is not a command")),
    }
    Ok(String::new())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no such number"))
}

fn queue<'a>(words: impl Iterator<Item = &'a str>) -> Result<QueueSettings, String> {
    let mut settings = QueueSettings::default();
    for word in words {
        match word.split_once('=') {
            Some(("lock", millis)) => settings.lock = Duration::from_millis(number(millis)?),
            Some(("max", count)) => settings.max_delivery_count = number(count)?,
            None if word == "sessions" => settings.sessions = true,
            None if word == "disabled" => settings.disabled = true,
            _ => return Err(format!("'{word}' is no property of a queue")),
        }
    }
    Ok(settings)
}

fn fault(text: &str) -> Result<Fault, String> {
    let mut words = text.split_whitespace();
    let on = match words.next().unwrap_or_default() {
        "open" => On::Open,
        "begin" => On::Begin,
        "put-token" => On::PutToken,
        "attach" => On::Attach,
        "send" => On::Send,
        "deliver" => On::Deliver,
        "settle" => On::Settle,
        "renew-lock" => On::RenewLock,
        "update-disposition" => On::UpdateDisposition,
        "renew-session" => On::RenewSession,
        "set-state" => On::SetState,
        "other-request" => On::OtherRequest,
        other => return Err(format!("'{other}' is no occasion for a fault")),
    };
    let mut fault = Fault::new(on, act(words.next().unwrap_or_default())?);
    for word in words {
        fault = match word.split_once('=') {
            Some(("at", address)) => fault.at(address),
            Some(("after", occasions)) => fault.after(number(occasions)?),
            Some(("times", times)) => fault.times(number(times)?),
            _ => return Err(format!("'{word}' is no property of a fault")),
        };
    }
    Ok(fault)
}

fn act(text: &str) -> Result<Act, String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let millis = || number(value).map(Duration::from_millis);
    Ok(match name {
        "busy" => Act::server_busy(),
        "lock-lost" => Act::lock_lost(),
        "unauthorized" => Act::unauthorized(),
        "ignore" => Act::Ignore,
        "lose" => Act::Lose,
        "delay" => Act::Delay(millis()?),
        "hold" => Act::Hold(millis()?),
        "duplicate" => Act::Duplicate,
        "shift" => Act::Shift,
        "uncorrelated" => Act::Uncorrelated,
        "cut" => Act::Cut,
        "cut-after" => Act::CutAfter,
        "freeze" => Act::Freeze,
        "detach" => Act::Detach {
            condition: value.to_owned(),
        },
        "refuse" => Act::Refuse {
            status: 400,
            condition: value.to_owned(),
            text: "Refused, as the test wants it.".into(),
        },
        other => return Err(format!("'{other}' is no act")),
    })
}
