//! Reads a range in order, and the newest entries of a log backwards.
//! `cargo run -p vmemkv-client --example scan [HOST:PORT]`

use futures::TryStreamExt as _;
use vmemkv_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "localhost:7400".to_owned());
    let client = Client::connect(address).await?;
    for n in 0..20 {
        client.put(format!("log:{n:04}"), format!("event {n}")).await?;
    }

    let mut events = client.scan(..).prefix("log:").stream();
    while let Some(event) = events.try_next().await? {
        println!("{:?} = {:?}", event.key, event.value);
    }

    let newest = client.scan("log:".."log;").reverse().limit(3).keys_only().collect().await?;
    println!("the newest: {:?}", newest.iter().map(|event| &event.key).collect::<Vec<_>>());
    println!("{} events", client.count("log:".."log;").await?);
    Ok(())
}
