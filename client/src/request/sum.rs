//! Checksum and count of a range.

use vmemkv_proto::v1;

use crate::client::Client;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::key_range::IntoKeyRange;

/// The sum of a range. Sums of ranges that do not overlap combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checksum {
    /// The xor, over all entries, of xxh3_64 (seed 0) of: key length (u32, little endian), key, value.
    pub checksum: u64,
    /// How many entries.
    pub count: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

impl Client {
    /// The checksum of the entries of a range. It is no snapshot: writes that run meanwhile count
    /// or do not. The deadline bounds each shard, not the whole.
    pub async fn checksum(&self, range: impl IntoKeyRange) -> Result<Checksum> {
        let (start, end) = range.into_key_range().into_wire();
        let request = v1::ChecksumRequest { start, end, ..Default::default() };
        let answer = self.dispatcher().checksum(request, Deadline::none(), self.step()).await?;
        Ok(Checksum { checksum: answer.checksum, count: answer.count, bytes: answer.bytes })
    }

    /// How many keys a range holds; as [`Client::checksum`].
    pub async fn count(&self, range: impl IntoKeyRange) -> Result<u64> {
        Ok(self.checksum(range).await?.count)
    }
}
