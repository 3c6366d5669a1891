//! Bytes as text: how keys and values are written on the command line and in files.
//!
//! Invariant: `decode(encode(bytes)) == bytes`, or an error: never a replacement character.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// How keys and values are written.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As they are; bytes that are not UTF-8 are refused.
    #[default]
    Utf8,
    /// Two hexadecimal digits a byte.
    Hex,
    /// Base64 with padding.
    Base64,
}

impl Encoding {
    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::Hex => "hex",
            Self::Base64 => "base64",
        }
    }

    /// The bytes that `text` stands for; `what` names it in the error.
    pub fn decode(self, what: &str, text: &str) -> Result<Vec<u8>, String> {
        match self {
            Self::Utf8 => Ok(text.as_bytes().to_vec()),
            Self::Hex => hex::decode(text).map_err(|error| format!("{what} is not hex: {error}")),
            Self::Base64 => {
                STANDARD.decode(text).map_err(|error| format!("{what} is not base64: {error}"))
            }
        }
    }

    /// The same for text that may be moved instead of copied.
    pub fn decode_owned(self, what: &str, text: String) -> Result<Vec<u8>, String> {
        match self {
            Self::Utf8 => Ok(text.into_bytes()),
            _ => self.decode(what, &text),
        }
    }

    /// `bytes` as text; `what` names them in the error.
    pub fn encode(self, what: &str, bytes: &[u8]) -> Result<String, String> {
        match self {
            Self::Utf8 => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.to_owned()),
                Err(error) => Err(format!(
                    "{what} is not UTF-8 (byte {}): use --encoding hex or --encoding base64",
                    error.valid_up_to()
                )),
            },
            Self::Hex => Ok(hex::encode(bytes)),
            Self::Base64 => Ok(STANDARD.encode(bytes)),
        }
    }
}

/// A key in a message: readable, whatever its bytes, and cut if it is long.
pub fn show_key(key: &[u8]) -> String {
    const SHOWN: usize = 64;
    let shown = &key[..key.len().min(SHOWN)];
    let dots = if key.len() > SHOWN { ".." } else { "" };
    match std::str::from_utf8(shown) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}{dots}"),
        _ => format!("\"{}\"{dots}", shown.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_is_lossless_or_an_error() {
        for bytes in [&b""[..], b"plain", "\u{20ac}".as_bytes(), &[0xff, 0, 0x80]] {
            for encoding in [Encoding::Utf8, Encoding::Hex, Encoding::Base64] {
                match encoding.encode("value", bytes) {
                    Ok(text) => assert_eq!(encoding.decode("value", &text).unwrap(), bytes),
                    Err(error) => {
                        assert_eq!(encoding, Encoding::Utf8);
                        assert!(error.contains("--encoding hex"), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_text_is_refused() {
        assert!(Encoding::Hex.decode("key", "abc").unwrap_err().contains("key is not hex"));
        assert!(Encoding::Hex.decode("key", "zz").is_err());
        assert!(Encoding::Base64.decode("key", "a").unwrap_err().contains("key is not base64"));
    }

    #[test]
    fn keys_are_shown_readably() {
        assert_eq!(show_key(b"user:1"), "\"user:1\"");
        assert_eq!(show_key(&[0xff, b'a']), "\"\\xffa\"");
        assert!(show_key(&[b'a'; 100]).ends_with("a\".."));
    }
}
