//! Every text of an error that a client can see.

use std::fmt;

/// Why a command was refused. It has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// An argument that is not a number in its range.
    Number { argument: &'static str, must_be: &'static str },
    /// An argument that is not 0 but would become 0.
    Vanishes { argument: &'static str },
    /// A moment that looks like milliseconds.
    Milliseconds { argument: &'static str, must_be: &'static str },
    /// `UPTO` with less than one token.
    UpToNothing,
    /// A capacity that takes too long to fill.
    FillTime { max_seconds: i64 },
    /// A forced call that takes too long to pay back.
    DebtTooLong { max_seconds: u64 },
    /// A word that is no option of the command.
    UnknownOption(String),
    /// An option that was there before.
    Twice(&'static str),
    /// Two options that exclude each other.
    Contradicts { option: &'static str, other: &'static str },
    /// An option at the end that wants a value.
    NeedsValue(&'static str),
    /// A key that was named before.
    SameKeyTwice,
    /// A count of keys that is none.
    KeyCount { most: usize },
    /// The server's text for a wrong number of arguments.
    WrongArity,
    /// The key holds something else.
    WrongType,
    /// A new bucket where `maxmemory` is reached.
    OutOfMemory,
    /// Another node of the cluster serves the key by now.
    Moved { slot: i64, address: String },
    /// The server is a primary no more.
    Demoted,
    /// The key's slot is moving to another node of the cluster, and the key is not here.
    OnItsWay,
    /// TB.STATE with something that is not a bucket.
    NotAState,
    /// TB.STATE from a later version of the module.
    LaterState { version: u8, known: u8 },
    /// A fault in the module.
    Internal,
}

/// The most of a client's bytes that an error repeats.
const MAX_ECHO: usize = 64;

impl Error {
    /// [`Error::UnknownOption`] for the bytes of a client.
    pub(crate) fn unknown_option(word: &[u8]) -> Self {
        Self::UnknownOption(word.iter().take(MAX_ECHO).flat_map(|byte| byte.escape_ascii()).map(char::from).collect())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self {
            Self::WrongType | Self::OutOfMemory | Self::Moved { .. } | Self::OnItsWay | Self::Demoted => "",
            _ => "ERR ",
        };
        f.write_str(owner)?;
        match self {
            Self::Number { argument, must_be } => write!(f, "{argument} must be {must_be}"),
            Self::Vanishes { argument } => write!(f, "{argument} must be 0 or at least 0.000001"),
            Self::Milliseconds { argument, must_be } => write!(f, "{argument} must be {must_be}: this looks like milliseconds"),
            Self::UpToNothing => write!(f, "tokens must be a number from 1 to 1000000000000 with UPTO"),
            Self::FillTime { max_seconds } => {
                write!(f, "rate must be high enough to fill the capacity within {max_seconds} seconds")
            }
            Self::DebtTooLong { max_seconds } => {
                write!(f, "tokens must be few enough to be paid back within {max_seconds} seconds")
            }
            Self::UnknownOption(word) => write!(f, "syntax error: unknown option '{word}'"),
            Self::Twice(option) => write!(f, "syntax error: {option} is given twice"),
            Self::Contradicts { option, other } => write!(f, "syntax error: {option} contradicts {other}"),
            Self::NeedsValue(option) => write!(f, "syntax error: {option} needs a value"),
            Self::SameKeyTwice => write!(f, "key must not be named twice"),
            Self::KeyCount { most } => write!(f, "numkeys must be a whole number from 1 to {most}"),
            Self::WrongArity => write!(f, "wrong number of arguments"),
            Self::WrongType => write!(f, "WRONGTYPE Operation against a key holding the wrong kind of value"),
            Self::OutOfMemory => write!(f, "OOM command not allowed when used memory > 'maxmemory'."),
            Self::Moved { slot, address } => write!(f, "MOVED {slot} {address}"),
            Self::Demoted => write!(f, "UNBLOCKED the server is a replica now"),
            Self::OnItsWay => write!(f, "TRYAGAIN the key is on its way to another node"),
            Self::NotAState => write!(f, "blob must be a bucket as this module writes it"),
            Self::LaterState { version, known } => {
                write!(f, "blob must be of version {known}, this one is of version {version}: upgrade this server first")
            }
            Self::Internal => write!(f, "internal error, see the server's log"),
        }
    }
}
