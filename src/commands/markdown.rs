//! docs/commands.md, made from [`COMMANDS`].
