//! Get: one key.

use bytes::Bytes;
use vmemkv_proto::v1;

use crate::client::Client;
use crate::error::Result;

impl Client {
    /// The value of a key; none: the key does not exist.
    ///
    /// ```no_run
    /// # async fn example(client: vmemkv_client::Client) -> vmemkv_client::Result<()> {
    /// match client.get("user:1").await? {
    ///     Some(value) => println!("{} bytes", value.len()),
    ///     None => println!("no such user"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let request =
            v1::GetRequest { key: Bytes::copy_from_slice(key.as_ref()), ..Default::default() };
        Ok(self.dispatcher().get(request, self.until(None)).await?.value)
    }
}
