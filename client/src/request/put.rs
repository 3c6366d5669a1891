//! Put: writes one key, also under a condition.

use bytes::Bytes;
use vmemkv_proto::v1;

use crate::client::Client;
use crate::error::Result;
use crate::operation::{PutOptions, Written};

impl Client {
    /// Writes a key. Once this returns, the value is durable as the cluster promises it.
    ///
    /// An error whose [`outcome`](crate::Error::outcome) is unknown may still be a write.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        self.put_with(key, value, PutOptions::new()).await.map(|_| ())
    }

    /// Writes a key if it does not exist; otherwise `current` is what is there.
    ///
    /// ```no_run
    /// # async fn example(client: vmemkv_client::Client) -> vmemkv_client::Result<()> {
    /// let written = client.put_if_absent("lock", "me").await?;
    /// if !written.applied {
    ///     println!("held by {:?}", written.current);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put_if_absent(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<Written> {
        self.put_with(key, value, PutOptions::new().if_absent()).await
    }

    /// Writes a key if it exists.
    pub async fn put_if_present(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<Written> {
        self.put_with(key, value, PutOptions::new().if_present()).await
    }

    /// Writes a key if it has the value `expected` (compare and set).
    pub async fn put_if_value(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        expected: impl Into<Bytes>,
    ) -> Result<Written> {
        self.put_with(key, value, PutOptions::new().if_value(expected)).await
    }

    /// Writes a key with options.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        options: PutOptions,
    ) -> Result<Written> {
        let deadline = self.until(options.deadline);
        let request = v1::PutRequest {
            key: Bytes::copy_from_slice(key.as_ref()),
            value: value.into(),
            ttl_ms: options.ttl_ms(),
            condition: options.condition.into_wire(),
            ..Default::default()
        };
        let answer = self.dispatcher().put(request, deadline).await?;
        Ok(Written { applied: answer.applied, existed: false, current: answer.current })
    }
}
