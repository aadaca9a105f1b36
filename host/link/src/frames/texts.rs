//! Texts that recur: names, addresses and kinds of devices.
//!
//! The first use of a text is a 0, its length and its bytes. Further uses are its number: texts count
//! from 1, in the order of their first use, names and other texts apart. Texts after the first
//! [`TEXTS_MAX`] and long texts have no number and are sent in full each time.

use super::primitives::Wire;
use super::{FrameError, FrameReader, FrameWriter};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use weir_scheduler::DeviceKind;
use weir_types::{Name, TenantId};

/// The number of texts of a kind that have numbers.
const TEXTS_MAX: usize = 16_384;
/// The length of the longest text that has a number: the length of a host name, and more than a
/// name has.
const TEXT_LEN_MAX: usize = 255;

/// The texts that one end of a link has sent.
#[derive(Debug, Default)]
pub(super) struct SentTexts {
    names: HashMap<Name, u64>,
    others: HashMap<Arc<str>, u64>,
}

/// The texts that the other end has received, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct ReceivedTexts {
    names: Vec<Name>,
    others: Vec<Arc<str>>,
}

/// A kind of text.
trait Text: Clone + Eq + Hash {
    fn text(&self) -> &str;
    fn parse(text: &str) -> Result<Self, FrameError>;
    fn sent(texts: &mut SentTexts) -> &mut HashMap<Self, u64>;
    fn received(texts: &mut ReceivedTexts) -> &mut Vec<Self>;
}

impl Text for Name {
    fn text(&self) -> &str {
        self.as_str()
    }

    fn parse(text: &str) -> Result<Self, FrameError> {
        Self::new(text).map_err(FrameError::Name)
    }

    fn sent(texts: &mut SentTexts) -> &mut HashMap<Self, u64> {
        &mut texts.names
    }

    fn received(texts: &mut ReceivedTexts) -> &mut Vec<Self> {
        &mut texts.names
    }
}

impl Text for Arc<str> {
    fn text(&self) -> &str {
        self
    }

    fn parse(text: &str) -> Result<Self, FrameError> {
        Ok(text.into())
    }

    fn sent(texts: &mut SentTexts) -> &mut HashMap<Self, u64> {
        &mut texts.others
    }

    fn received(texts: &mut ReceivedTexts) -> &mut Vec<Self> {
        &mut texts.others
    }
}

impl FrameWriter<'_> {
    fn text<T: Text>(&mut self, text: &T) {
        let sent = T::sent(self.texts);
        if let Some(number) = sent.get(text) {
            let number = *number;
            return self.number(number);
        }
        if is_numbered(sent.len(), text.text()) {
            let number = sent.len() as u64 + 1;
            sent.insert(text.clone(), number);
        }
        self.number(0);
        self.number(text.text().len() as u64);
        self.bytes.extend_from_slice(text.text().as_bytes());
    }
}

impl FrameReader<'_> {
    fn text<T: Text>(&mut self) -> Result<T, FrameError> {
        let number = self.number()?;
        if number > 0 {
            let place = usize::try_from(number - 1).unwrap_or(usize::MAX);
            return T::received(self.texts).get(place).cloned().ok_or(FrameError::UnknownText(number));
        }
        let len = self.len()?;
        let text = std::str::from_utf8(self.slice(len)?).map_err(|_| FrameError::NotUtf8)?;
        let parsed = T::parse(text)?;
        let received = T::received(self.texts);
        if is_numbered(received.len(), text) {
            received.push(parsed.clone());
        }
        Ok(parsed)
    }
}

/// Whether a text gets a number, after this many others. Both ends must agree.
fn is_numbered(earlier: usize, text: &str) -> bool {
    earlier < TEXTS_MAX && text.len() <= TEXT_LEN_MAX
}

impl Wire for Name {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.text(self);
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        from.text()
    }
}

impl Wire for TenantId {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.text(self.name());
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        from.text::<Name>().map(Self::from)
    }
}

impl Wire for Arc<str> {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.text(self);
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        from.text()
    }
}

impl Wire for DeviceKind {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.text(&self.0);
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        from.text().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    /// The texts at both ends of a link.
    #[derive(Default)]
    struct Ends {
        sent: SentTexts,
        received: ReceivedTexts,
    }

    impl Ends {
        /// Transfers a text, and returns the number of bytes that it takes.
        fn transfer(&mut self, text: &Arc<str>) -> usize {
            let mut bytes = BytesMut::new();
            text.put(&mut FrameWriter { bytes: &mut bytes, texts: &mut self.sent });
            let mut from = FrameReader { bytes: &bytes, texts: &mut self.received };
            assert_eq!(Arc::<str>::take(&mut from).as_ref(), Ok(text));
            assert!(from.bytes.is_empty());
            bytes.len()
        }
    }

    #[test]
    fn recurring_text_is_sent_once() {
        let mut ends = Ends::default();
        let text: Arc<str> = "10.0.0.1:9347".into();
        assert_eq!([ends.transfer(&text), ends.transfer(&text)], [2 + text.len(), 1]);
    }

    #[test]
    fn numbered_texts_are_bounded() {
        let mut ends = Ends::default();
        let long: Arc<str> = "x".repeat(TEXT_LEN_MAX + 1).into();
        for _ in 0..2 {
            assert!(ends.transfer(&long) > long.len());
        }
        for number in 0..TEXTS_MAX {
            ends.transfer(&number.to_string().into());
        }
        let further: Arc<str> = "further".into();
        for _ in 0..2 {
            assert!(ends.transfer(&further) > further.len());
        }
        let last: Arc<str> = (TEXTS_MAX - 1).to_string().into();
        assert_eq!(ends.transfer(&last), 3);
        assert_eq!((ends.sent.others.len(), ends.received.others.len()), (TEXTS_MAX, TEXTS_MAX));
    }
}
