//! Outcomes of deliveries, and errors.

use super::decode::Malformed;
use super::value::Value;

/// An AMQP error.
#[derive(Clone, Debug, PartialEq)]
pub struct AmqpError {
    /// Condition, a symbol such as `amqp:not-found`.
    pub condition: String,
    /// Text for people.
    pub description: Option<String>,
    /// Further information, by name.
    pub info: Value,
}

impl AmqpError {
    /// Makes an error from a condition and its text.
    #[must_use]
    pub fn new(condition: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            condition: condition.into(),
            description: Some(description.into()),
            info: Value::Null,
        }
    }

    /// Reads a field that may be null.
    pub(crate) fn from_field(value: &Value) -> Result<Option<Self>, Malformed> {
        if *value == Value::Null {
            return Ok(None);
        }
        let Some((0x1d, Value::List(fields))) = value.as_described() else {
            return Err(Malformed::field("an error that is no error"));
        };
        let field = |at| fields.get(at).cloned().unwrap_or(Value::Null);
        let Some(condition) = field(0).text().map(str::to_owned) else {
            return Err(Malformed::field("an error without a condition"));
        };
        Ok(Some(Self {
            condition,
            description: field(1).text().map(str::to_owned),
            info: field(2),
        }))
    }

    /// Writes a field. All three parts are written, even as nulls: Microsoft's client for Python
    /// reads the third without a check, and waits for ever if it is missing.
    pub(crate) fn to_field(&self) -> Value {
        let fields = vec![
            Value::symbol(self.condition.clone()),
            self.description.clone().map_or(Value::Null, Value::String),
            self.info.clone(),
        ];
        Value::described(0x1d, Value::List(fields))
    }
}

/// State of a delivery in a disposition or a transfer.
#[derive(Clone, Debug, PartialEq)]
pub enum DeliveryState {
    /// Received so far: no outcome yet.
    Received,
    /// Done: the message is completed.
    Accepted,
    /// Refused: the message is dead-lettered; with an error in an answer, the request is refused.
    Rejected(Option<AmqpError>),
    /// Not begun: back into the queue as it was.
    Released,
    /// Returned with a change.
    Modified {
        /// Whether it counts as an attempt.
        delivery_failed: bool,
        /// Whether this receiver shall not get it again: "defer" in Service Bus.
        undeliverable_here: bool,
        /// Entries for the message; null if there are none.
        annotations: Value,
    },
}

impl DeliveryState {
    pub(crate) fn from_field(value: &Value) -> Result<Option<Self>, Malformed> {
        if *value == Value::Null {
            return Ok(None);
        }
        let Some((code, Value::List(fields))) = value.as_described() else {
            return Err(Malformed::field("a delivery state that is none"));
        };
        let field = |at: usize| fields.get(at).cloned().unwrap_or(Value::Null);
        Ok(Some(match code {
            0x23 => Self::Received,
            0x24 => Self::Accepted,
            0x25 => Self::Rejected(AmqpError::from_field(&field(0))?),
            0x26 => Self::Released,
            0x27 => Self::Modified {
                delivery_failed: field(0) == Value::Bool(true),
                undeliverable_here: field(1) == Value::Bool(true),
                annotations: field(2),
            },
            other => {
                return Err(Malformed::field(format!(
                    "a delivery state with the code {other:#x}"
                )));
            }
        }))
    }

    pub(crate) fn to_field(&self) -> Value {
        match self {
            Self::Received => Value::composite(0x23, vec![Value::Uint(0), Value::Ulong(0)]),
            Self::Accepted => Value::composite(0x24, Vec::new()),
            Self::Rejected(error) => Value::composite(
                0x25,
                vec![error.as_ref().map_or(Value::Null, AmqpError::to_field)],
            ),
            Self::Released => Value::composite(0x26, Vec::new()),
            Self::Modified {
                delivery_failed,
                undeliverable_here,
                annotations,
            } => Value::composite(
                0x27,
                vec![
                    Value::Bool(*delivery_failed),
                    Value::Bool(*undeliverable_here),
                    annotations.clone(),
                ],
            ),
        }
    }
}
