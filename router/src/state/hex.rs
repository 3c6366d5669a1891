//! Keys as text: lower-case hex, for stored records and settings.
//!
//! Invariants: what [`encode`] writes, [`decode`] reads back; upper case is read too.

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The hex form of some bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The bytes of a hex form; `None` if it is not one.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// For `#[serde(with = "hex")]`: writes bytes as text.
pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(bytes))
}

/// For `#[serde(with = "hex")]`: reads bytes from text.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).map(Bytes::from).ok_or_else(|| D::Error::custom("not hex"))
}

/// For `#[serde(with = "hex::list")]`: a list of keys.
pub mod list {
    use super::{Bytes, Deserializer, Serializer, Texts, decode, encode};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Serialize as _};

    /// Writes keys as texts.
    pub fn serialize<S: Serializer>(keys: &[Bytes], serializer: S) -> Result<S::Ok, S::Error> {
        let texts: Texts = keys.iter().map(|key| encode(key)).collect();
        texts.serialize(serializer)
    }

    /// Reads keys from texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Bytes>, D::Error> {
        let texts = Texts::deserialize(deserializer)?;
        let keys = texts.iter().map(|text| decode(text).map(Bytes::from));
        keys.collect::<Option<_>>().ok_or_else(|| D::Error::custom("not hex"))
    }
}

type Texts = Vec<String>;

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert_eq!(decode("0aFF").unwrap(), [10, 255]);
        assert_eq!(decode("").unwrap(), [0; 0]);
    }

    #[test]
    fn what_is_not_hex_is_refused() {
        for text in ["0", "0g", "zz", "000", "-1"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
