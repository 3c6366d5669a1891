//! Delete and DeleteRange.

use bytes::Bytes;
use vmemkv_proto::v1;

use crate::client::Client;
use crate::error::Result;
use crate::key_range::IntoKeyRange;
use crate::operation::{DeleteOptions, Written};

impl Client {
    /// Removes a key; says whether it existed.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.delete_with(key, DeleteOptions::new()).await?.existed)
    }

    /// Removes a key with options: [`Written::applied`] says whether the condition held,
    /// [`Written::existed`] whether a key was removed.
    pub async fn delete_with(
        &self,
        key: impl AsRef<[u8]>,
        options: DeleteOptions,
    ) -> Result<Written> {
        let deadline = self.until(options.deadline);
        let request = v1::DeleteRequest {
            key: Bytes::copy_from_slice(key.as_ref()),
            condition: options.condition.into_wire(),
            ..Default::default()
        };
        let answer = self.dispatcher().delete(request, deadline).await?;
        Ok(Written { applied: answer.applied, existed: answer.existed, current: answer.current })
    }

    /// Removes the keys of a range; says how many. It is not atomic: writes that run meanwhile may
    /// be removed or stay, and after an error a part may be gone. The deadline bounds each step,
    /// not the whole.
    pub async fn delete_range(&self, range: impl IntoKeyRange) -> Result<u64> {
        let (mut start, end) = range.into_key_range().into_wire();
        let mut deleted = 0u64;
        loop {
            let request = v1::DeleteRangeRequest {
                start: start.clone(),
                end: end.clone(),
                ..Default::default()
            };
            let answer = self.dispatcher().delete_range(request, self.until(None)).await?;
            deleted = deleted.saturating_add(answer.deleted);
            if answer.done {
                return Ok(deleted);
            }
            start = answer.covered_to;
        }
    }
}
