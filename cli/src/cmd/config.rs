//! `vmemkv config`: the settings in force, and where each came from.
//!
//! Invariant: what it accepts, `vmemkv server` and `vmemkv router` accept.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::config::{FlagSettings, Loaded};
use crate::context::Context;
use crate::failure::Result;
use crate::output::Grid;

const EXAMPLES: &str = "\
Settings come from, the later ones winning: defaults, a file (TOML or YAML), the environment
(VMEMKV_SECTION__KEY), flags. The sections are server, router and log.

Examples:
  vmemkv config
  vmemkv config --config vmemkv.toml --changed
  VMEMKV_SERVER__LISTEN=0.0.0.0:7410 vmemkv config --json";

/// Flags of `vmemkv config`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    /// A file of settings, .toml, .yaml or .yml
    #[arg(long, value_name = "FILE")]
    pub config: Option<std::path::PathBuf>,
    /// Leave the defaults out
    #[arg(long)]
    pub changed: bool,
}

/// Runs the command.
pub fn run(args: &ConfigArgs, context: &Context) -> Result {
    let mut flags = FlagSettings::default();
    flags.set_if("--log-level", "log.level", context.globals.log_filter());
    let loaded = Loaded::from_process(args.config.as_deref(), flags)?;
    for warning in &loaded.warnings {
        context.output.note(format!("warning: {warning}"));
    }
    let mut rows = loaded.listing()?;
    rows.retain(|(_, _, origin)| !args.changed || origin != "default");
    context.output.either(
        || {
            let settings: Map<String, Value> = rows
                .iter()
                .map(|(path, value, origin)| {
                    (path.clone(), json!({ "value": value, "from": origin }))
                })
                .collect();
            Value::Object(settings)
        },
        || {
            let mut grid = Grid::new(&["SETTING", "VALUE", "FROM"]);
            for (path, value, origin) in &rows {
                grid.row([path.clone(), value.to_string(), origin.clone()]);
            }
            grid.to_text("every setting has its default")
        },
    )
}
