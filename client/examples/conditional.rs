//! A counter by compare and set, and what to do when a write's outcome is unknown.
//! `cargo run -p vmemkv-client --example conditional [HOST:PORT]`

use vmemkv_client::{Client, Outcome};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "localhost:7400".to_owned());
    let client = Client::connect(address).await?;

    client.put_if_absent("counter", "0").await?;
    loop {
        let Some(current) = client.get("counter").await? else { continue };
        let count: u64 = std::str::from_utf8(&current)?.parse()?;
        match client.put_if_value("counter", format!("{}", count + 1), current).await {
            Ok(written) if written.applied => {
                println!("the counter is {}", count + 1);
                return Ok(());
            }
            // Somebody was faster.
            Ok(_) => {}
            Err(error) if error.outcome() == Outcome::Unknown => {
                // It may be counted, now or a little later: only the value tells.
                eprintln!("{error}");
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
