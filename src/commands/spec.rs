//! What is said of a command, once: for registration, COMMAND DOCS and the docs.

use super::Run;

/// A command.
pub(crate) struct Command {
    /// As clients write it.
    pub(crate) name: &'static str,
    /// One sentence, as COMMAND DOCS has it.
    pub(crate) summary: &'static str,
    /// How its time grows, as COMMAND DOCS has it.
    pub(crate) complexity: &'static str,
    /// The version of the module that brought it.
    pub(crate) since: &'static str,
    /// Where its keys are.
    pub(crate) keys: Keys,
    /// What it does to them.
    pub(crate) access: KeyAccess,
    /// Who it is for.
    pub(crate) audience: Audience,
    /// Whether its client may have to wait.
    pub(crate) blocks: bool,
    /// The number of words with the command's name; at least so many where negative.
    pub(crate) arity: i32,
    /// In the order of the call.
    pub(crate) arguments: &'static [Argument],
    /// What follows the arguments in docs/commands.md, in Markdown.
    #[cfg_attr(not(test), expect(dead_code, reason = "read where the docs are made"))]
    pub(crate) details: &'static str,
    /// What runs it.
    pub(crate) run: Run,
}

/// Where the keys of a command are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// There is one, the first argument.
    First,
    /// The first argument says how many follow it.
    Counted,
}

/// What a command does to its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyAccess {
    /// Only reads it.
    Read,
    /// Reads it, and writes what follows.
    Update,
    /// Writes it, whatever it was.
    Overwrite,
}

/// Who a command is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Everybody.
    Clients,
    /// Replication and AOF.
    Servers,
}

/// An argument.
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The word before it.
    pub(crate) token: Option<&'static str>,
    pub(crate) optional: bool,
    /// Whether it may come again.
    pub(crate) repeats: bool,
    /// One phrase: meaning, unit, range, default.
    pub(crate) summary: &'static str,
}

/// What kind of argument it is.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Key,
    Number,
    UnixTime,
    Blob,
    /// No value: the token is all of it.
    Flag,
    Integer,
    /// One of these.
    OneOf(&'static [Argument]),
    /// All of these, in order.
    Block(&'static [Argument]),
}

impl Argument {
    /// One that has to be there.
    pub(crate) const fn required(name: &'static str, kind: Kind, summary: &'static str) -> Self {
        Self { name, kind, token: None, optional: false, repeats: false, summary }
    }

    /// One that may be left out.
    pub(crate) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// One that may come again.
    pub(crate) const fn repeated(self) -> Self {
        Self { repeats: true, ..self }
    }

    /// One with a word before it.
    pub(crate) const fn after(self, token: &'static str) -> Self {
        Self { token: Some(token), ..self }
    }
}

/// The key that most commands begin with.
pub(crate) const KEY: Argument = Argument::required("key", Kind::Key, "the bucket");
