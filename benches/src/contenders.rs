//! What is measured: commands, and the keys they find.

/// Every key has 23 bytes; `__rand_int__` becomes twelve digits.
pub(crate) const KEY: &str = "limit:call:__rand_int__";
pub(crate) const KEYS: usize = 1000;

/// The SHA-1 of the script, once it is loaded.
pub(crate) const SCRIPT: &str = "SCRIPT";

/// One thing that is measured.
#[derive(Clone)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// What is sent; of several, each by clients of its own.
    pub(crate) commands: Vec<Vec<&'static str>>,
    /// What is sent once for each key before.
    pub(crate) setup: Vec<Vec<&'static str>>,
    pub(crate) beside: Option<Beside>,
}

/// The names of the contenders of the same kind.
#[derive(Clone, Copy)]
pub(crate) struct Beside {
    pub(crate) script: &'static str,
    /// In redis-cell.
    pub(crate) cell: &'static str,
    /// Without a decision.
    pub(crate) floor: &'static str,
    /// Without one, but with a look at the expiry.
    pub(crate) mending: Option<&'static str>,
}

fn words(line: &'static str) -> Vec<&'static str> {
    line.split(' ').map(|word| if word == "KEY" { KEY } else { word }).collect()
}

fn contender(name: &'static str, command: &'static str, setup: &[&'static str]) -> Contender {
    Contender { name, commands: vec![words(command)], setup: setup.iter().copied().map(words).collect(), beside: None }
}

/// All of them; those of redis-cell where it is there.
pub(crate) fn all(cell: bool) -> Vec<Contender> {
    let mut all = vec![
        Contender {
            beside: Some(Beside {
                script: "script, allowed",
                cell: "CL.THROTTLE, allowed",
                floor: "API floor, granted",
                mending: Some("API floor, granted and mending"),
            }),
            ..contender("TB.CONSUME, allowed", "TB.CONSUME KEY 1000000 100000", &["TB.CONSUME KEY 1000000 100000"])
        },
        Contender {
            beside: Some(Beside {
                script: "script, denied",
                cell: "CL.THROTTLE, denied",
                floor: "API floor, denied",
                mending: None,
            }),
            ..contender("TB.CONSUME, denied", "TB.CONSUME KEY 1 0.001", &["TB.CONSUME KEY 1 0.001"])
        },
        contender("script, allowed", "EVALSHA SCRIPT 1 KEY 1000000 100000 1", &["EVALSHA SCRIPT 1 KEY 1000000 100000 1"]),
        contender("script, denied", "EVALSHA SCRIPT 1 KEY 1 0.001 1", &["EVALSHA SCRIPT 1 KEY 1 0.001 1"]),
        contender("API floor, granted", "FLOOR.GRANTED KEY 1000000 100000", &["FLOOR.GRANTED KEY 1000000 100000"]),
        contender("API floor, granted and mending", "FLOOR.MENDING KEY 1000000 100000", &["FLOOR.GRANTED KEY 1000000 100000"]),
        contender("API floor, denied", "FLOOR.DENIED KEY 1 0.001", &["FLOOR.GRANTED KEY 1000000 100000"]),
        contender("API, nothing done", "FLOOR.NOTHING KEY 1 0.001", &[]),
        contender("INCR", "INCR KEY", &["INCR KEY"]),
        contender("SET", "SET KEY xxx", &["SET KEY xxx"]),
        contender("GET", "GET KEY", &["SET KEY xxx"]),
        contender(
            "TB.CONSUME, reserved",
            "TB.CONSUME KEY 10 10 1 MAXWAIT 31622400",
            &["TB.CONSUME KEY 10 10 10", "TB.CONSUME KEY 10 10 10 FORCE"],
        ),
        contender("TB.SYNC, ignored", "TB.SYNC KEY 1000000", &["TB.CONSUME KEY 1000000 100000"]),
        contender("TB.SYNC, applied", "TB.SYNC KEY 0", &["TB.CONSUME KEY 1000000 1000000"]),
        Contender {
            commands: vec![words("TB.CONSUME KEY 1000000 100000"), words("TB.CONSUME KEY 900000 90000")],
            ..contender("TB.CONSUME, two limits", "", &["TB.CONSUME KEY 1000000 100000"])
        },
    ];
    if cell {
        all.push(contender("CL.THROTTLE, allowed", "CL.THROTTLE KEY 999999 100000 1", &["CL.THROTTLE KEY 999999 100000 1"]));
        all.push(contender("CL.THROTTLE, denied", "CL.THROTTLE KEY 0 1 1000", &["CL.THROTTLE KEY 0 1 1000"]));
    }
    all
}

/// Those whose latency is compared.
pub(crate) fn timed(all: &[Contender]) -> Vec<Contender> {
    let names = ["GET", "TB.CONSUME, allowed", "TB.CONSUME, denied"];
    all.iter().filter(|contender| names.contains(&contender.name)).cloned().collect()
}

impl Contender {
    /// A command for one key.
    pub(crate) fn for_key(command: &[&'static str], number: usize, script: &str) -> Vec<String> {
        let name = KEY.replace("__rand_int__", &format!("{number:012}"));
        let word = |word: &&str| match *word {
            KEY => name.clone(),
            SCRIPT => script.to_owned(),
            other => other.to_owned(),
        };
        command.iter().map(word).collect()
    }
}

/// Bytes as the protocol has a command.
pub(crate) fn encode(words: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}
