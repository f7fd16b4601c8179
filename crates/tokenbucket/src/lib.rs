//! placeholder
#![forbid(unsafe_code)]
mod bucket;
mod decimal;
mod limit;
pub mod packed;
pub mod state;
pub use bucket::{
    Bare, Bucket, Consume, DebtTooLong, Decision, Effect, Limited, LimitedReading, Mode, Reading, Status, Sync, Synced,
};
pub use decimal::{Decimal, MAX_TEXT, Rounding};
pub use limit::{Limit, MAX_FILL_US, Moment, Rate, Tokens};
