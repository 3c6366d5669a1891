//! Writes a hundred thousand keys in batches, then reads some of them.
//! `cargo run --release -p vmemkv-client --example batch [HOST:PORT]`

use futures::{StreamExt as _, stream};
use vmemkv_client::{Client, Operation};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "localhost:7400".to_owned());
    let client = Client::connect(address).await?;

    // An endless source would do as well: little is taken ahead of the results.
    let operations =
        stream::iter((0..100_000).map(|n| Operation::put(format!("item:{n:06}"), format!("{n}"))));
    let mut results = client.batch_put_stream(operations);
    let (mut written, mut failed) = (0, 0);
    while let Some(result) = results.next().await {
        match result {
            Ok(_) => written += 1,
            Err(error) if error.is_unknown() => {
                eprintln!("perhaps written: {error}");
                failed += 1;
            }
            Err(error) => {
                eprintln!("not written: {error}");
                failed += 1;
            }
        }
    }
    println!("{written} written, {failed} failed");

    let keys = ["item:000001", "item:099999", "item:none"];
    for (key, value) in keys.iter().zip(client.batch_get(keys).await) {
        println!("{key} = {:?}", value?);
    }
    Ok(())
}
