//! Reads along the service's frames, for what the AMQP library does not pass on: that a link has used up its
//! credit, how many messages it delivered until then, and how the service answered a disposition. Pure. It
//! skips what it does not understand.

// Examined bytes of a frame; the fields in question are at its beginning.
const KEEP: usize = 2048;
const HEADER: usize = 8;
const SIZE: usize = 4;

/// Event in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// Service's end of a link, and its handle.
    Attach {
        /// The link.
        link: LinkState,
        /// Name that this process gave it.
        name: String,
    },
    /// Complete message.
    Delivered(LinkState),
    /// Link that has used up its credit, as requested.
    Drained(LinkState),
    /// State of deliveries that the service has settled.
    Settled {
        /// Channel on which they are numbered.
        channel: u16,
        /// First delivery.
        first: u32,
        /// Last delivery.
        last: u32,
        /// Their state.
        said: DeliveryState,
    },
}

/// Link by its channel and handle, as the service numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Channel of the connection.
    pub channel: u16,
    /// Handle on that channel.
    pub handle: u32,
}

/// State in which the service settled a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Settled, without a refusal.
    Done,
    /// Refused: condition and text.
    Refused(String, String),
}

/// Splits a stream of bytes into frames.
#[derive(Debug, Default)]
pub struct FrameScanner {
    head: Vec<u8>,
    seen: usize,
}

impl FrameScanner {
    /// Takes in received bytes, and passes on the events in them.
    ///
    /// # Errors
    /// The number of bytes before a frame that is shorter than its own header: the library would panic at it.
    pub fn feed(&mut self, bytes: &[u8], mut tell: impl FnMut(FrameEvent)) -> Result<(), usize> {
        let (mut begun, mut at) = (0, 0);
        while at < bytes.len() {
            let rest = bytes.get(at..).unwrap_or_default();
            let wanted = self.size().unwrap_or(SIZE);
            let part = rest.len().min(wanted.saturating_sub(self.seen));
            // Transfers can be 100 MB long.
            let kept = KEEP.saturating_sub(self.head.len()).min(part);
            self.head.extend(rest.iter().take(kept));
            self.seen += part;
            at += part;
            match self.size() {
                Some(size) if size < HEADER => return Err(begun),
                Some(size) if size == self.seen => {
                    if let Some(event) = read(&self.head) {
                        tell(event);
                    }
                    self.head.clear();
                    self.seen = 0;
                    begun = at;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn size(&self) -> Option<usize> {
        let size: [u8; SIZE] = self.head.get(..SIZE)?.try_into().ok()?;
        if &size == b"AMQP" {
            return Some(HEADER);
        }
        Some(u32::from_be_bytes(size) as usize)
    }
}

fn read(frame: &[u8]) -> Option<FrameEvent> {
    let [_, _, _, _, offset, kind, channel @ ..] = frame.get(..HEADER)? else {
        return None;
    };
    // SASL's own frames use the same codes.
    if *kind != 0 || frame.starts_with(b"AMQP") {
        return None;
    }
    let channel = u16::from_be_bytes(channel.try_into().ok()?);
    // The second field counts the header in units of four bytes.
    let mut rest = ByteReader(frame.get(usize::from(*offset) * 4..)?);
    let (code, mut fields) = rest.described_list()?;
    match code {
        0x12 => {
            // Handles are the service's own: only the name identifies the link.
            let name = fields.text()?;
            let handle = fields.uint()??;
            let link = LinkState { channel, handle };
            Some(FrameEvent::Attach { link, name })
        }
        0x13 => {
            fields.skip(4)?;
            // A flow about the session has no handle.
            let handle = fields.uint()??;
            fields.skip(1)?;
            let credit = fields.uint()??;
            fields.skip(1)?;
            let drained = fields.truth()? && credit == 0;
            drained.then_some(FrameEvent::Drained(LinkState { channel, handle }))
        }
        0x14 => {
            let handle = fields.uint()??;
            fields.skip(4)?;
            // Only the last transfer of several completes a message.
            let more = fields.truth().unwrap_or(false);
            fields.skip(3)?;
            let aborted = fields.truth().unwrap_or(false);
            (!more && !aborted).then_some(FrameEvent::Delivered(LinkState { channel, handle }))
        }
        0x15 => {
            // The client's own go the other way, and an unsettled one is no answer.
            let by_receiver = fields.truth()?;
            let first = fields.uint()??;
            let last = fields.uint()?.unwrap_or(first);
            let settled = fields.truth()?;
            if by_receiver || !settled {
                return None;
            }
            let said = fields.outcome().unwrap_or(DeliveryState::Done);
            Some(FrameEvent::Settled {
                channel,
                first,
                last,
                said,
            })
        }
        _ => None,
    }
}

/// Reader of one value after another; `None` at a value of another type.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self, width: usize) -> Option<u64> {
        let bytes = self.take(width)?;
        Some(
            bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    }

    /// Reads a described list: code and content. Fields at the end may be absent.
    fn described_list(&mut self) -> Option<(u64, ByteReader<'a>)> {
        if self.byte()? != 0 {
            return None;
        }
        let code = match self.byte()? {
            0x44 => 0,
            0x53 => self.number(1)?,
            0x80 => self.number(8)?,
            _ => return None,
        };
        let width = match self.byte()? {
            0x45 => return Some((code, ByteReader(&[]))),
            0xc0 => 1,
            0xd0 => 4,
            _ => return None,
        };
        let size = self.number(width)? as usize;
        // A transfer's payload follows the list. The end of a long list may be missing.
        let list = self.0.get(..size).unwrap_or(self.0);
        self.0 = self.0.get(size..).unwrap_or(&[]);
        let mut list = ByteReader(list);
        list.take(width)?;
        Some((code, list))
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        for _ in 0..count {
            if self.0.is_empty() {
                return Some(());
            }
            self.value()?;
        }
        Some(())
    }

    fn value(&mut self) -> Option<()> {
        let code = self.byte()?;
        if code == 0 {
            self.value()?;
            return self.value();
        }
        // The upper half of a type tells its width: so unknown types can be skipped.
        let width = match code >> 4 {
            0x4 => 0,
            0x5 => 1,
            0x6 => 2,
            0x7 => 4,
            0x8 => 8,
            0x9 => 16,
            0xa | 0xc | 0xe => self.number(1)? as usize,
            0xb | 0xd | 0xf => self.number(4)? as usize,
            _ => return None,
        };
        self.take(width)?;
        Some(())
    }

    /// Reads a number; `Some(None)` if it is null or absent.
    fn uint(&mut self) -> Option<Option<u32>> {
        let Some(code) = self.byte() else {
            return Some(None);
        };
        let number = match code {
            0x40 => return Some(None),
            0x43 => 0,
            0x52 => self.number(1)?,
            0x70 => self.number(4)?,
            _ => return None,
        };
        u32::try_from(number).ok().map(Some)
    }

    fn truth(&mut self) -> Option<bool> {
        let Some(code) = self.byte() else {
            return Some(false);
        };
        match code {
            0x40 | 0x42 => Some(false),
            0x41 => Some(true),
            0x56 => Some(self.byte()? != 0),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        let width = match self.byte()? {
            0xa1 | 0xa3 => 1,
            0xb1 | 0xb3 => 4,
            _ => return None,
        };
        let length = self.number(width)? as usize;
        let text = self.take(length)?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn outcome(&mut self) -> Option<DeliveryState> {
        let (code, mut fields) = self.described_list()?;
        if code != 0x25 {
            return Some(DeliveryState::Done);
        }
        // The answer to dead-lettering is a rejection without an error.
        let (_, mut error) = fields.described_list()?;
        let condition = error.text()?;
        let text = error.text().unwrap_or_default();
        Some(DeliveryState::Refused(condition, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(code: u8, fields: &[&[u8]], behind: &[u8]) -> Vec<u8> {
        let fields: Vec<u8> = fields.concat();
        let mut body = vec![0, 0x53, code, 0xd0];
        body.extend(((fields.len() + 4) as u32).to_be_bytes());
        body.extend([0, 0, 0, 99]);
        body.extend(&fields);
        body.extend(behind);
        let mut frame = ((body.len() + 8) as u32).to_be_bytes().to_vec();
        frame.extend([2, 0, 0, 7]);
        frame.extend(body);
        frame
    }

    fn all(bytes: &[u8], cut: usize) -> Vec<FrameEvent> {
        let mut scanner = FrameScanner::default();
        let mut events = Vec::new();
        for part in bytes.chunks(cut) {
            if scanner.feed(part, |event| events.push(event)).is_err() {
                break;
            }
        }
        events
    }

    const LINK: LinkState = LinkState {
        channel: 7,
        handle: 3,
    };

    fn stream(payload: usize) -> (Vec<u8>, Vec<FrameEvent>) {
        let refused = [
            0, 0x53, 0x25, 0xc0, 16, 1, 0, 0x53, 0x1d, 0xc0, 10, 2, 0xa3, 3, b'a', b':', b'b',
            0xa1, 2, b'n', b'o',
        ];
        let payload = vec![0x53; payload];
        let parts = [
            b"AMQP\x03\x01\x00\x00".to_vec(),
            // SASL, with the code of a disposition.
            vec![0, 0, 0, 12, 2, 1, 0, 0, 0, 0x53, 0x15, 0x45],
            b"AMQP\x00\x01\x00\x00".to_vec(),
            frame(0x12, &[b"\xa1\x02me", b"\x52\x03", b"\x42"], b""),
            // A heartbeat.
            vec![0, 0, 0, 8, 2, 0, 0, 0],
            // Two pieces of a message, and an aborted one.
            frame(
                0x14,
                &[
                    b"\x52\x03",
                    b"\x43",
                    b"\xa0\x01x",
                    b"\x43",
                    b"\x42",
                    b"\x41",
                ],
                &payload,
            ),
            frame(0x14, &[b"\x52\x03"], &payload),
            frame(
                0x14,
                &[b"\x52\x03\x43\xa0\x01x\x43\x42\x42\x40\x40\x42", b"\x41"],
                b"",
            ),
            // One of the session, one without drain, and the one that counts.
            frame(0x13, &[b"\x43\x43\x43\x43"], b""),
            frame(
                0x13,
                &[b"\x43\x43\x43\x43", b"\x52\x03", b"\x43", b"\x43"],
                b"",
            ),
            frame(
                0x13,
                &[b"\x43\x43\x43\x43", b"\x52\x03\x43\x52\x05\x40\x41"],
                b"",
            ),
            frame(
                0x13,
                &[
                    b"\x43\x43\x43\x43",
                    b"\x70\0\0\0\x03",
                    b"\x52\x09\x43\x40\x56\x01",
                ],
                b"",
            ),
            frame(0x15, &[b"\x42\x52\x04\x40\x41", b"\0\x53\x24\x45"], b""),
            frame(0x15, &[b"\x42\x52\x04\x52\x06\x41", &refused], b""),
            frame(0x15, &[b"\x42\x52\x04\x40\x42"], b""),
            frame(0x15, &[b"\x41\x52\x04\x40\x41"], b""),
        ];
        let settled = |last, said| FrameEvent::Settled {
            channel: 7,
            first: 4,
            last,
            said,
        };
        let events = vec![
            FrameEvent::Attach {
                link: LINK,
                name: "me".into(),
            },
            FrameEvent::Delivered(LINK),
            FrameEvent::Drained(LINK),
            settled(4, DeliveryState::Done),
            settled(6, DeliveryState::Refused("a:b".into(), "no".into())),
        ];
        (parts.concat(), events)
    }

    #[test]
    fn events_are_found_in_a_stream_cut_anywhere() {
        let (stream, events) = stream(5000);
        for cut in [1, 2, 3, 7, 8, 9, 100, 4096, usize::MAX] {
            assert_eq!(all(&stream, cut), events, "in pieces of {cut}");
        }
    }

    #[test]
    fn frame_shorter_than_its_header_is_refused_before_it_is_passed_on() {
        let (sound, events) = stream(20);
        for size in 0..8_u8 {
            for behind in [0, 1, 4, 100] {
                let mut stream = sound.clone();
                stream.extend([0, 0, 0, size]);
                stream.extend(vec![0; behind]);
                for cut in [1, 3, 4, 7, 1000, stream.len()] {
                    let mut scanner = FrameScanner::default();
                    let mut seen = Vec::new();
                    let mut passed = 0;
                    for part in stream.chunks(cut) {
                        match scanner.feed(part, |event| seen.push(event)) {
                            Ok(()) => passed += part.len(),
                            Err(before) => {
                                passed += before;
                                break;
                            }
                        }
                    }
                    assert!(
                        passed < sound.len() + 4,
                        "{size}, {behind} behind, by {cut}"
                    );
                    assert!(passed >= sound.len(), "{size}, {behind} behind, by {cut}");
                    assert_eq!(seen, events);
                }
            }
        }
    }

    #[test]
    fn damaged_frames_do_not_panic() {
        let (stream, _) = stream(20);
        for at in 0..stream.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = stream.clone();
                damaged[at] ^= flip;
                all(&damaged, 64);
            }
        }
        all(&[0; 1000], 10);
        all(b"HTTP/1.1 400 Bad Request\r\n\r\n", 5);
    }
}
