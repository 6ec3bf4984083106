//! The stand-in broker as a program, for scripts: `service-bus-stand-in --port 0 --queue jobs`.
//!
//! It prints the connection string, then carries out [`commands`] from its standard input, and ends
//! with that: a script that dies leaves nothing behind.

mod commands;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use service_bus_stand_in::{Broker, Settings};

const USAGE: &str = "\
A stand-in for an Azure Service Bus namespace on 127.0.0.1: a test tool.

Usage: service-bus-stand-in [--port N] [--queue NAME]... [--tls-cert FILE --tls-key FILE]

  --port N         the port to listen on; 0, the default, takes a free one
  --queue NAME     makes a queue, or a subscription (TOPIC/Subscriptions/NAME)
  --tls-cert FILE  speaks TLS from the first byte; needs the feature `tls`
  --tls-key FILE   the certificate's key
  --annotate       sends lock tokens also as a delivery annotation

Commands on the standard input, answered with a line that begins with `ok` or `error`:
";

#[derive(Default)]
struct Options {
    port: u16,
    queues: Vec<String>,
    cert: Option<String>,
    key: Option<String>,
    annotate: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}{}", commands::HELP);
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("service-bus-stand-in: {why}; --help shows what there is");
            return ExitCode::from(64);
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("service-bus-stand-in: {why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    while let Some(name) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{name} needs a value"))
        };
        match name.as_str() {
            "--port" => {
                let port = value()?;
                options.port = port.parse().map_err(|_| format!("'{port}' is no port"))?;
            }
            "--queue" => options.queues.push(value()?),
            "--tls-cert" => options.cert = Some(value()?),
            "--tls-key" => options.key = Some(value()?),
            "--annotate" => options.annotate = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("'{other}' is not an option")),
        }
    }
    if options.cert.is_some() != options.key.is_some() {
        return Err("--tls-cert and --tls-key go together".into());
    }
    Ok(Some(options))
}

fn serve(options: &Options) -> Result<(), String> {
    let mut settings = Settings {
        port: options.port,
        token_annotation: options.annotate,
        ..Settings::default()
    };
    if let (Some(cert), Some(key)) = (&options.cert, &options.key) {
        use_tls(&mut settings, cert, key)?;
    }
    let broker = Broker::start(settings)
        .map_err(|why| format!("cannot listen on 127.0.0.1:{}: {why}", options.port))?;
    for queue in &options.queues {
        broker.create(queue, service_bus_stand_in::QueueSettings::default());
    }
    say(&broker.connection_string())?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|why| format!("cannot read the standard input: {why}"))?;
        match commands::obey(&broker, &line) {
            Ok(answer) => say(format!("ok {answer}").trim_end())?,
            Err(why) => say(&format!("error {why}"))?,
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|why| format!("cannot write to the standard output: {why}"))
}

#[cfg(feature = "tls")]
fn use_tls(settings: &mut Settings, cert: &str, key: &str) -> Result<(), String> {
    let read =
        |file: &str| std::fs::read(file).map_err(|why| format!("cannot read '{file}': {why}"));
    let tls = service_bus_stand_in::Tls::from_pem(&read(cert)?, &read(key)?)
        .map_err(|why| format!("'{cert}' and '{key}' are no certificate and its key: {why}"))?;
    settings.tls = Some(tls);
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn use_tls(_: &mut Settings, cert: &str, _: &str) -> Result<(), String> {
    Err(format!(
        "'{cert}' is of no use: this was built without `--features tls`"
    ))
}
