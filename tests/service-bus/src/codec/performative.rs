//! Bodies of frames: the performatives of AMQP and SASL, with the fields that a broker or its test
//! client needs. Other fields are skipped in reading, and left out in writing.

use super::Malformed;
use super::state::{AmqpError, DeliveryState};
use super::value::Value;

/// The body of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Performative {
    /// Opens the connection.
    Open(Open),
    /// Begins a session.
    Begin(Begin),
    /// Attaches a link.
    Attach(Attach),
    /// Grants credit, and sets windows.
    Flow(Flow),
    /// Carries a message, or a part of one.
    Transfer(Transfer),
    /// Settles deliveries, or reports their outcome.
    Disposition(Disposition),
    /// Ends a link.
    Detach(Detach),
    /// Ends a session.
    End(Option<AmqpError>),
    /// Ends the connection.
    Close(Option<AmqpError>),
    /// Lists the mechanisms that the server accepts.
    SaslMechanisms(Vec<String>),
    /// Carries the client's choice and its first response.
    SaslInit(String, Vec<u8>),
    /// Ends SASL: 0 is success.
    SaslOutcome(u8),
}

/// See the standard, 2.7.1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Open {
    /// Name of the sending container.
    pub container_id: String,
    /// Host that the client wants to reach.
    pub hostname: Option<String>,
    /// Largest accepted frame, in bytes.
    pub max_frame_size: Option<u32>,
    /// The highest channel.
    pub channel_max: Option<u16>,
    /// Silence after which it gives up, in milliseconds.
    pub idle_time_out: Option<u32>,
}

/// See the standard, 2.7.2.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Begin {
    /// Answered channel, in an answer.
    pub remote_channel: Option<u16>,
    /// Number of its first transfer.
    pub next_outgoing_id: u32,
    /// Number of transfers that it accepts.
    pub incoming_window: u32,
    /// Number of transfers that it can have under way.
    pub outgoing_window: u32,
    /// The highest handle.
    pub handle_max: Option<u32>,
}

/// See the standard, 2.7.3.
#[derive(Clone, Debug, PartialEq)]
pub struct Attach {
    /// The link's name.
    pub name: String,
    /// Number of the link in the session.
    pub handle: u32,
    /// Whether the sender of this frame is the receiver of messages.
    pub receiver: bool,
    /// 0 unsettled, 1 settled, 2 mixed.
    pub snd_settle_mode: u8,
    /// 0 first, 1 second.
    pub rcv_settle_mode: u8,
    /// Source of the messages, as it was sent.
    pub source: Value,
    /// Target of the messages.
    pub target: Value,
    /// The sender's delivery count at the start.
    pub initial_delivery_count: Option<u32>,
    /// Largest accepted message, in bytes.
    pub max_message_size: Option<u64>,
    /// Properties of the link.
    pub properties: Value,
}

impl Attach {
    /// Returns the address of a source or a target.
    #[must_use]
    pub fn address(terminus: &Value) -> Option<&str> {
        let (_, fields) = terminus.as_described()?;
        fields.elements()?.first()?.text()
    }

    /// Returns the filters of a source.
    #[must_use]
    pub fn filter(source: &Value) -> Option<&Value> {
        let (_, fields) = source.as_described()?;
        fields.elements()?.get(7)
    }

    /// Returns the source with this session in its filter.
    #[must_use]
    pub fn with_session(source: &Value, session: &str) -> Value {
        let fields = source
            .as_described()
            .and_then(|(_, fields)| fields.elements());
        let mut fields = fields.unwrap_or_default().to_vec();
        fields.resize(fields.len().max(8), Value::Null);
        // The bare name: Microsoft's client for JavaScript does not accept the described one that
        // it sends.
        let filter = Value::string(session);
        fields[7] = Value::Map(vec![(
            Value::symbol("com.microsoft:session-filter"),
            filter,
        )]);
        Value::composite(0x28, fields)
    }

    /// Makes a source with only an address.
    #[must_use]
    pub fn source(address: &str) -> Value {
        Value::composite(0x28, vec![Value::string(address)])
    }

    /// Makes a target with only an address.
    #[must_use]
    pub fn target(address: &str) -> Value {
        Value::composite(0x29, vec![Value::string(address)])
    }
}

/// See the standard, 2.7.4.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Number of the next transfer that it expects.
    pub next_incoming_id: Option<u32>,
    /// Number of transfers that it accepts.
    pub incoming_window: u32,
    /// Number of its next transfer.
    pub next_outgoing_id: u32,
    /// Number of transfers that it can have under way.
    pub outgoing_window: u32,
    /// The link, if the flow is about one.
    pub handle: Option<u32>,
    /// Delivery count of the link.
    pub delivery_count: Option<u32>,
    /// Number of further deliveries that are allowed.
    pub link_credit: Option<u32>,
    /// Number of messages available at the sender.
    pub available: Option<u32>,
    /// Whether the sender shall send what it has, and then use up the rest of the credit.
    pub drain: bool,
    /// Whether an answer is wanted.
    pub echo: bool,
}

/// See the standard, 2.7.5.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfer {
    /// The link.
    pub handle: u32,
    /// Number of the delivery in the session; left out in further parts.
    pub delivery_id: Option<u32>,
    /// Tag of the delivery on its link.
    pub delivery_tag: Option<Vec<u8>>,
    /// Encoding of the message.
    pub message_format: Option<u32>,
    /// Whether no disposition is expected.
    pub settled: Option<bool>,
    /// Whether further parts follow.
    pub more: bool,
    /// Whether the parts so far are void.
    pub aborted: bool,
}

/// See the standard, 2.7.6.
#[derive(Clone, Debug, PartialEq)]
pub struct Disposition {
    /// Whether the receiver of the deliveries sends this.
    pub receiver: bool,
    /// The first delivery.
    pub first: u32,
    /// The last delivery; the first if left out.
    pub last: Option<u32>,
    /// Whether the sender of this frame has forgotten them.
    pub settled: bool,
    /// Outcome of the deliveries.
    pub state: Option<DeliveryState>,
}

/// See the standard, 2.7.7.
#[derive(Clone, Debug, PartialEq)]
pub struct Detach {
    /// The link.
    pub handle: u32,
    /// Whether the link is closed for good.
    pub closed: bool,
    /// Reason of the end.
    pub error: Option<AmqpError>,
}

struct Fields<'a> {
    name: &'static str,
    list: &'a [Value],
}

impl Fields<'_> {
    fn get(&self, at: usize) -> &Value {
        self.list.get(at).unwrap_or(&Value::Null)
    }

    /// Returns a field that may be missing, but must otherwise be readable by `read`.
    fn optional<T>(
        &self,
        at: usize,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Malformed> {
        match self.get(at) {
            Value::Null => Ok(None),
            value => read(value)
                .map(Some)
                .ok_or_else(|| Malformed::field(format!("{}: field {at} is {value:?}", self.name))),
        }
    }

    fn mandatory<T>(
        &self,
        at: usize,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Malformed> {
        self.optional(at, read)?
            .ok_or_else(|| Malformed::field(format!("{}: field {at} is missing", self.name)))
    }

    fn flag(&self, at: usize) -> Result<bool, Malformed> {
        Ok(self.optional(at, boolean)?.unwrap_or(false))
    }

    fn error(&self, at: usize) -> Result<Option<AmqpError>, Malformed> {
        AmqpError::from_field(self.get(at))
    }
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    value.text().map(str::to_owned)
}

fn binary(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Binary(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn number<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    value.unsigned().and_then(|n| n.try_into().ok())
}

fn symbols(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(all) => all.iter().map(text).collect(),
        one => text(one).map(|one| vec![one]),
    }
}

fn or_null<T>(value: Option<T>, wrap: impl FnOnce(T) -> Value) -> Value {
    value.map_or(Value::Null, wrap)
}

fn error_list(error: Option<&AmqpError>) -> Vec<Value> {
    vec![error.map_or(Value::Null, AmqpError::to_field)]
}

impl Performative {
    /// Decodes a performative.
    ///
    /// # Errors
    /// If it is unknown here, or a field is missing or of a wrong type.
    pub fn from_value(value: &Value) -> Result<Self, Malformed> {
        let Some((code, Value::List(list))) = value.as_described() else {
            return Err(Malformed::decode(
                "a frame that does not begin with a performative",
            ));
        };
        let of = |name| Fields { name, list };
        Ok(match code {
            0x10 => {
                let f = of("open");
                Self::Open(Open {
                    container_id: f.mandatory(0, text)?,
                    hostname: f.optional(1, text)?,
                    max_frame_size: f.optional(2, number)?,
                    channel_max: f.optional(3, number)?,
                    idle_time_out: f.optional(4, number)?,
                })
            }
            0x11 => {
                let f = of("begin");
                Self::Begin(Begin {
                    remote_channel: f.optional(0, number)?,
                    next_outgoing_id: f.mandatory(1, number)?,
                    incoming_window: f.mandatory(2, number)?,
                    outgoing_window: f.mandatory(3, number)?,
                    handle_max: f.optional(4, number)?,
                })
            }
            0x12 => {
                let f = of("attach");
                Self::Attach(Attach {
                    name: f.mandatory(0, text)?,
                    handle: f.mandatory(1, number)?,
                    receiver: f.mandatory(2, boolean)?,
                    snd_settle_mode: f.optional(3, number)?.unwrap_or(2),
                    rcv_settle_mode: f.optional(4, number)?.unwrap_or(0),
                    source: f.get(5).clone(),
                    target: f.get(6).clone(),
                    initial_delivery_count: f.optional(9, number)?,
                    max_message_size: f.optional(10, number)?,
                    properties: f.get(13).clone(),
                })
            }
            0x13 => {
                let f = of("flow");
                Self::Flow(Flow {
                    next_incoming_id: f.optional(0, number)?,
                    incoming_window: f.mandatory(1, number)?,
                    next_outgoing_id: f.mandatory(2, number)?,
                    outgoing_window: f.mandatory(3, number)?,
                    handle: f.optional(4, number)?,
                    delivery_count: f.optional(5, number)?,
                    link_credit: f.optional(6, number)?,
                    available: f.optional(7, number)?,
                    drain: f.flag(8)?,
                    echo: f.flag(9)?,
                })
            }
            0x14 => {
                let f = of("transfer");
                Self::Transfer(Transfer {
                    handle: f.mandatory(0, number)?,
                    delivery_id: f.optional(1, number)?,
                    delivery_tag: f.optional(2, binary)?,
                    message_format: f.optional(3, number)?,
                    settled: f.optional(4, boolean)?,
                    more: f.flag(5)?,
                    aborted: f.flag(9)?,
                })
            }
            0x15 => {
                let f = of("disposition");
                Self::Disposition(Disposition {
                    receiver: f.mandatory(0, boolean)?,
                    first: f.mandatory(1, number)?,
                    last: f.optional(2, number)?,
                    settled: f.flag(3)?,
                    state: DeliveryState::from_field(f.get(4))?,
                })
            }
            0x16 => {
                let f = of("detach");
                Self::Detach(Detach {
                    handle: f.mandatory(0, number)?,
                    closed: f.flag(1)?,
                    error: f.error(2)?,
                })
            }
            0x17 => Self::End(of("end").error(0)?),
            0x18 => Self::Close(of("close").error(0)?),
            0x40 => Self::SaslMechanisms(of("sasl-mechanisms").mandatory(0, symbols)?),
            0x41 => {
                let f = of("sasl-init");
                Self::SaslInit(
                    f.mandatory(0, text)?,
                    f.optional(1, binary)?.unwrap_or_default(),
                )
            }
            0x44 => Self::SaslOutcome(of("sasl-outcome").mandatory(0, number)?),
            other => {
                return Err(Malformed::decode(format!(
                    "no performative has the code {other:#x}"
                )));
            }
        })
    }

    /// Encodes it as a described list.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let (code, fields) = match self {
            Self::Open(it) => (
                0x10,
                vec![
                    Value::string(it.container_id.clone()),
                    or_null(it.hostname.clone(), Value::String),
                    or_null(it.max_frame_size, Value::Uint),
                    or_null(it.channel_max, Value::Ushort),
                    or_null(it.idle_time_out, Value::Uint),
                ],
            ),
            Self::Begin(it) => (
                0x11,
                vec![
                    or_null(it.remote_channel, Value::Ushort),
                    Value::Uint(it.next_outgoing_id),
                    Value::Uint(it.incoming_window),
                    Value::Uint(it.outgoing_window),
                    or_null(it.handle_max, Value::Uint),
                ],
            ),
            Self::Attach(it) => (
                0x12,
                vec![
                    Value::string(it.name.clone()),
                    Value::Uint(it.handle),
                    Value::Bool(it.receiver),
                    Value::Ubyte(it.snd_settle_mode),
                    Value::Ubyte(it.rcv_settle_mode),
                    it.source.clone(),
                    it.target.clone(),
                    Value::Null,
                    Value::Null,
                    or_null(it.initial_delivery_count, Value::Uint),
                    or_null(it.max_message_size, Value::Ulong),
                    Value::Null,
                    Value::Null,
                    it.properties.clone(),
                ],
            ),
            Self::Flow(it) => (
                0x13,
                vec![
                    or_null(it.next_incoming_id, Value::Uint),
                    Value::Uint(it.incoming_window),
                    Value::Uint(it.next_outgoing_id),
                    Value::Uint(it.outgoing_window),
                    or_null(it.handle, Value::Uint),
                    or_null(it.delivery_count, Value::Uint),
                    or_null(it.link_credit, Value::Uint),
                    or_null(it.available, Value::Uint),
                    Value::Bool(it.drain),
                    Value::Bool(it.echo),
                ],
            ),
            Self::Transfer(it) => (
                0x14,
                vec![
                    Value::Uint(it.handle),
                    or_null(it.delivery_id, Value::Uint),
                    or_null(it.delivery_tag.clone(), Value::Binary),
                    or_null(it.message_format, Value::Uint),
                    or_null(it.settled, Value::Bool),
                    Value::Bool(it.more),
                    Value::Null,
                    Value::Null,
                    Value::Null,
                    if it.aborted {
                        Value::Bool(true)
                    } else {
                        Value::Null
                    },
                ],
            ),
            Self::Disposition(it) => (
                0x15,
                vec![
                    Value::Bool(it.receiver),
                    Value::Uint(it.first),
                    or_null(it.last, Value::Uint),
                    Value::Bool(it.settled),
                    it.state
                        .as_ref()
                        .map_or(Value::Null, DeliveryState::to_field),
                ],
            ),
            Self::Detach(it) => (
                0x16,
                vec![
                    Value::Uint(it.handle),
                    Value::Bool(it.closed),
                    it.error.as_ref().map_or(Value::Null, AmqpError::to_field),
                ],
            ),
            Self::End(error) => (0x17, error_list(error.as_ref())),
            Self::Close(error) => (0x18, error_list(error.as_ref())),
            Self::SaslMechanisms(all) => (
                0x40,
                vec![Value::Array(all.iter().map(Value::symbol).collect())],
            ),
            Self::SaslInit(mechanism, response) => (
                0x41,
                vec![
                    Value::symbol(mechanism.clone()),
                    Value::Binary(response.clone()),
                ],
            ),
            Self::SaslOutcome(code) => (0x44, vec![Value::Ubyte(*code)]),
        };
        Value::composite(code, fields)
    }
}
