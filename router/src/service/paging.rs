//! Lists in pages.
//!
//! Invariants: a page has at most [`MAX_PAGE_SIZE`] items and about 1 MiB, and at least one item if
//! any is left; a token names the item behind which the next page begins, so that a list goes on
//! although items come and go; a token of another list is refused.

use prost::Message;
use vmemkv_proto::ApiError;
use vmemkv_proto::check::invalid;
use vmemkv_proto::limits::{ANSWER_TARGET_BYTES, ENTRY_OVERHEAD_BYTES, MAX_PAGE_SIZE};

use crate::state::hex;

/// The size of a page, if the caller does not say.
const DEFAULT_PAGE_SIZE: usize = 100;

/// Which part of a list is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a> {
    /// Tells the lists' tokens apart.
    list: char,
    token: &'a str,
    size: usize,
}

impl<'a> Page<'a> {
    pub(super) fn new(list: char, token: &'a str, size: u32) -> Self {
        let size = match size {
            0 => DEFAULT_PAGE_SIZE,
            asked => asked.min(MAX_PAGE_SIZE) as usize,
        };
        Self { list, token, size }
    }

    /// The id behind which the page begins; `None`: at the start.
    pub(super) fn after_id(&self) -> Result<Option<u64>, ApiError> {
        match self.after_bytes()? {
            None => Ok(None),
            Some(bytes) => match <[u8; 8]>::try_from(bytes) {
                Ok(bytes) => Ok(Some(u64::from_le_bytes(bytes))),
                Err(_) => Err(Self::refused()),
            },
        }
    }

    /// The key behind which the page begins; `None`: at the start.
    pub(super) fn after_bytes(&self) -> Result<Option<Vec<u8>>, ApiError> {
        if self.token.is_empty() {
            return Ok(None);
        }
        let text = self.token.strip_prefix(self.list);
        text.and_then(hex::decode).map(Some).ok_or_else(Self::refused)
    }

    /// One page of what is left, and the token for the next one.
    pub(super) fn take<T, M: Message>(
        &self,
        left: impl Iterator<Item = T>,
        message: impl Fn(&T) -> M,
        position: impl Fn(&T) -> Vec<u8>,
    ) -> (Vec<M>, String) {
        let mut page = Vec::new();
        let mut bytes = 0;
        let mut last = Vec::new();
        for item in left {
            let next = message(&item);
            bytes += next.encoded_len() + ENTRY_OVERHEAD_BYTES;
            if page.len() == self.size || (!page.is_empty() && bytes > ANSWER_TARGET_BYTES) {
                return (page, format!("{}{}", self.list, hex::encode(&last)));
            }
            last = position(&item);
            page.push(next);
        }
        (page, String::new())
    }

    fn refused() -> ApiError {
        invalid("page_token", "not one that this list gave")
    }
}

#[cfg(test)]
mod tests {
    use vmemkv_proto::v1;

    use super::*;

    fn take(page: Page<'_>, count: u64) -> (Vec<u64>, String) {
        let after = page.after_id().unwrap().unwrap_or(0);
        let message = |id: &u64| v1::Node { node_id: *id, ..Default::default() };
        let (page, next) = page.take(after + 1..=count, message, |id| id.to_le_bytes().to_vec());
        (page.iter().map(|node| node.node_id).collect(), next)
    }

    #[test]
    fn pages_join_to_the_list() {
        for size in [1, 2, 3, 7, 100] {
            let (mut all, mut token) = (Vec::new(), String::new());
            loop {
                let (page, next) = take(Page::new('n', &token, size), 7);
                assert!(page.len() <= size as usize);
                all.extend(page);
                token = next;
                if token.is_empty() {
                    break;
                }
            }
            assert_eq!(all, (1..=7).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_has_a_limit() {
        assert_eq!(take(Page::new('n', "", 0), 500).0.len(), DEFAULT_PAGE_SIZE);
        assert_eq!(take(Page::new('n', "", u32::MAX), 5000).0.len(), MAX_PAGE_SIZE as usize);
    }

    #[test]
    fn a_foreign_token_is_refused() {
        for token in ["x", "n", "n12", "s0102030405060708", "nzz", "n010203040506070809"] {
            let refused = Page::new('n', token, 0).after_id().is_err();
            assert!(refused, "{token}");
        }
    }
}
