//! Writes, reads and removes a key. `cargo run -p vmemkv-client --example quickstart [HOST:PORT]`

use vmemkv_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "localhost:7400".to_owned());
    let client = Client::connect(address).await?;

    client.put("user:1", "Ada").await?;
    match client.get("user:1").await? {
        Some(value) => println!("user:1 is {}", String::from_utf8_lossy(&value)),
        None => println!("somebody has removed user:1"),
    }
    println!("removed: {}", client.delete("user:1").await?);
    Ok(())
}
