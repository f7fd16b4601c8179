//! A good citizen of Redis: what the server knows about the commands, and that
//! they behave as its own do wherever a command can be called from.

use std::collections::BTreeSet;

use redis::{PushKind, Value};

use crate::assert_left_of;
use crate::connection::{Connection, array, consumed, error_text, field, int, pairs, text};
use crate::server::{Server, wait_until};

const COMMANDS: [&str; 8] =
    ["TB.CONSUME", "TB.MCONSUME", "TB.BCONSUME", "TB.PENALISE", "TB.SYNC", "TB.REFUND", "TB.PEEK", "TB.STATE"];

/// A call of each command on `k` that has something to write if it writes.
const CALLS: [&str; 7] = [
    "TB.CONSUME k 10 0.01",
    "TB.CONSUME k 10 0.01 2 UPTO",
    "TB.BCONSUME k 10 0.01 1 0.001",
    "TB.PENALISE k 10",
    "TB.SYNC k 0 LIMIT 1 RESET 60",
    "TB.REFUND k 1",
    "TB.PEEK k",
];

// ---- COMMAND

struct CommandInfo {
    arity: i64,
    flags: BTreeSet<String>,
    keys: (i64, i64, i64),
    spec: Value,
}

fn words(reply: &Value) -> BTreeSet<String> {
    array(reply.clone()).iter().map(text).collect()
}

fn command_info(c: &mut Connection, name: &str) -> CommandInfo {
    let info = array(array(c.ask(&format!("COMMAND INFO {name}")))[0].clone());
    let specs = array(info[8].clone());
    assert_eq!(specs.len(), 1, "{name}: {specs:?}");
    CommandInfo {
        arity: int(&info[1]),
        flags: words(&info[2]),
        keys: (int(&info[3]), int(&info[4]), int(&info[5])),
        spec: specs[0].clone(),
    }
}

#[test]
fn every_command_is_known_with_its_arity_and_its_key() {
    let server = Server::start();
    let mut c = server.connect();
    for (name, arity) in [
        ("TB.CONSUME", -4),
        ("TB.BCONSUME", -6),
        ("TB.PENALISE", -3),
        ("TB.SYNC", -3),
        ("TB.REFUND", 3),
        ("TB.PEEK", 2),
        ("TB.STATE", 3),
    ] {
        let info = command_info(&mut c, name);
        assert_eq!(info.arity, arity, "{name}");
        assert_eq!(info.keys, (1, 1, 1), "{name}");
        let begin = field(&info.spec, "begin_search");
        assert_eq!(text(&field(&begin, "type")), "index", "{name}");
        assert_eq!(int(&field(&field(&begin, "spec"), "index")), 1, "{name}");
        let find = field(&info.spec, "find_keys");
        assert_eq!(text(&field(&find, "type")), "range", "{name}");
        assert_eq!(int(&field(&field(&find, "spec"), "lastkey")), 0, "{name}");
    }
}

#[test]
fn there_are_no_other_commands() {
    let server = Server::start();
    let listed = words(&server.connect().ask("COMMAND LIST FILTERBY MODULE tokenbucket"));
    let listed: BTreeSet<_> = listed.iter().map(|name| name.to_uppercase()).collect();
    assert_eq!(listed, COMMANDS.map(str::to_owned).into());
}

#[test]
fn the_flags_say_what_a_command_does() {
    let server = Server::start();
    let mut c = server.connect();
    for name in COMMANDS {
        let flags = command_info(&mut c, name).flags;
        let has = |flag: &str| flags.contains(flag);
        assert_eq!(has("readonly"), name == "TB.PEEK", "{name}: {flags:?}");
        assert_eq!(has("write"), name != "TB.PEEK", "{name}: {flags:?}");
        assert!(has("fast"), "{name}: {flags:?}");
        // Existing buckets go on limiting when the memory is full.
        assert!(!has("denyoom"), "{name}: {flags:?}");
        // What no application has a use for may call itself administrative.
        assert!(!has("admin") || name == "TB.STATE", "{name}: {flags:?}");
        assert_eq!(has("movablekeys"), name == "TB.MCONSUME", "{name}: {flags:?}");
        assert_eq!(has("blocking"), name == "TB.BCONSUME", "{name}: {flags:?}");
        for never in ["noscript", "no_multi"] {
            assert!(!has(never), "{name}: {flags:?}");
        }
    }
}

#[test]
fn the_key_specs_say_who_reads_and_who_writes() {
    let server = Server::start();
    let mut c = server.connect();
    for name in COMMANDS {
        let flags = words(&field(&command_info(&mut c, name).spec, "flags"));
        let has = |flag: &str| flags.contains(flag);
        if name == "TB.PEEK" {
            assert!(has("RO") && has("access"), "{name}: {flags:?}");
            assert!(!has("update") && !has("insert"), "{name}: {flags:?}");
        } else {
            assert!(!has("RO"), "{name}: {flags:?}");
            assert!(has("update") || has("insert"), "{name}: {flags:?}");
        }
        if ["TB.CONSUME", "TB.BCONSUME", "TB.SYNC", "TB.REFUND"].contains(&name) {
            // They answer with what the key holds.
            assert!(has("RW") && has("access"), "{name}: {flags:?}");
        }
    }
}

#[test]
fn getkeys_finds_the_key() {
    let server = Server::start();
    let mut c = server.connect();
    for call in CALLS {
        let keys = words(&c.ask(&format!("COMMAND GETKEYS {call}")));
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["k"], "{call}");
    }
}

/// The grammar that the arguments make, with `_` for what follows a token.
fn grammar(arguments: Value, between: &str) -> String {
    let parts = array(arguments).into_iter().map(|argument| {
        let has = |name| pairs(argument.clone()).into_iter().any(|(key, _)| text(&key) == name);
        let kind = text(&field(&argument, "type"));
        let part = if kind == "oneof" {
            grammar(field(&argument, "arguments"), " | ")
        } else if kind == "pure-token" {
            text(&field(&argument, "token"))
        } else if has("token") {
            format!("{} _", text(&field(&argument, "token")))
        } else {
            text(&field(&argument, "name"))
        };
        if has("flags") && words(&field(&argument, "flags")).contains("optional") { format!("[{part}]") } else { part }
    });
    parts.collect::<Vec<_>>().join(between)
}

#[test]
fn command_docs_are_complete() {
    let server = Server::start();
    let mut c = server.connect();
    for (command, expected) in [
        ("TB.CONSUME", "key capacity rate [tokens] [PER _] [UPTO | FORCE | MAXWAIT _]"),
        ("TB.PENALISE", "key seconds | UNTIL _"),
        ("TB.SYNC", "key remaining [LIMIT _] [RESET _ | RESETAT _] [TOLERANCE _]"),
        ("TB.REFUND", "key tokens"),
        ("TB.PEEK", "key"),
        ("TB.STATE", "key blob"),
    ] {
        let docs = pairs(c.ask(&format!("COMMAND DOCS {command}")));
        assert_eq!(docs.len(), 1, "{command}");
        assert_eq!(text(&docs[0].0).to_uppercase(), command);
        let docs = &docs[0].1;
        assert!(text(&field(docs, "summary")).len() > 20, "{command}");
        assert_eq!(text(&field(docs, "complexity")), "O(1)", "{command}");
        assert!(!text(&field(docs, "since")).is_empty(), "{command}");
        assert_eq!(text(&field(docs, "group")), "module", "{command}");
        assert_eq!(grammar(field(docs, "arguments"), " "), expected, "{command}");
    }
}

#[test]
fn the_module_is_listed_and_cannot_be_unloaded() {
    let server = Server::start();
    let mut c = server.connect();
    let modules = array(c.ask("MODULE LIST"));
    let names: Vec<_> = modules.iter().map(|module| text(&field(module, "name"))).collect();
    assert!(names.contains(&"tokenbucket".to_owned()), "{names:?}"); // some servers bring others
    assert!(c.error("MODULE UNLOAD tokenbucket").starts_with("ERR"));
    assert_eq!(c.take("k 5 1e-8").remaining, 4);
}

#[test]
fn buckets_are_found_by_their_type() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("bucket 5 1e-8");
    c.ok("SET text x");
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let page = array(c.ask(&format!("SCAN {cursor} TYPE tokbucket")));
        found.extend(words(&page[1]));
        cursor = text(&page[0]);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["bucket"]);
}

// ---- ACL

/// A connection of a user with the rules.
fn user(server: &Server, rules: &str) -> Connection {
    let mut admin = server.connect();
    admin.ok(&format!("ACL SETUSER worker reset on nopass {rules}"));
    let mut c = server.connect();
    c.ok("AUTH worker any");
    c
}

#[test]
fn a_user_who_may_only_read_a_key_may_only_peek() {
    let server = Server::start();
    server.connect().take("k 10 0.01 4");
    let mut c = user(&server, "%R~k +@all");
    let before = server.connect().footprint("k");
    for call in CALLS.into_iter().chain(["TB.STATE k blob", "TB.CONSUME k 10 0.01 0"]) {
        let reply = error_text(&c.ask(call));
        if call == "TB.PEEK k" {
            assert_eq!(reply, None);
        } else {
            assert!(reply.is_some_and(|e| e.starts_with("NOPERM")), "{call}");
        }
    }
    assert_eq!(server.connect().footprint("k"), before);
}

#[test]
fn a_user_who_may_only_write_a_key_may_not_peek_or_consume() {
    let server = Server::start();
    let mut c = user(&server, "%W~k +@all");
    assert!(c.error("TB.PEEK k").starts_with("NOPERM"));
    assert!(c.error("TB.CONSUME k 10 1").starts_with("NOPERM"));
    assert_eq!(server.connect().int("DBSIZE"), 0);
}

#[test]
fn a_user_may_touch_no_other_keys() {
    let server = Server::start();
    let mut c = user(&server, "~mine:* +@all");
    assert_eq!(c.take("mine:k 5 1e-8").remaining, 4);
    for call in CALLS {
        assert!(c.error(call).starts_with("NOPERM"), "{call}");
    }
    assert_eq!(server.connect().int("EXISTS k"), 0);
}

#[test]
fn a_count_of_keys_that_the_server_cannot_read_opens_no_key() {
    let server = Server::start();
    let mut admin = server.connect();
    let mut limited = user(&server, "~mine:* +@all");
    assert_eq!(limited.error("TB.MCONSUME 1 other 10 1 1 1").split(' ').next(), Some("NOPERM"));
    for count in ["01", "001", "00000000000000000000001", "0", "+1", "1.0", "1e0", "-1", "65", "1\0", " 1", ""] {
        let call = ["TB.MCONSUME", count, "other", "10", "1", "1", "1"];
        assert_eq!(limited.error_bytes(&call), "ERR numkeys must be a whole number from 1 to 64", "{count:?}");
    }
    assert_eq!(admin.int("EXISTS other"), 0);
    // Whatever is taken for a count here the server has read as the same.
    for count in ["1", "2", "64"] {
        let keys: Vec<String> = (0..count.parse().unwrap()).map(|key| format!("mine:{key}")).collect();
        let limits = keys.iter().flat_map(|_| ["10", "1", "1", "1"].map(str::to_owned));
        let call: Vec<String> = ["TB.MCONSUME", count].map(str::to_owned).into_iter().chain(keys.clone()).chain(limits).collect();
        let found =
            admin.ask_bytes(&["COMMAND", "GETKEYS"].map(str::to_owned).into_iter().chain(call.clone()).collect::<Vec<_>>());
        assert_eq!(array(found).iter().map(text).collect::<Vec<_>>(), keys);
        assert_eq!(int(&array(limited.ask_bytes(&call))[0]), 1);
    }
}

#[test]
fn a_user_may_be_given_single_commands() {
    let server = Server::start();
    let mut c = user(&server, "~* +tb.consume +tb.peek");
    assert_eq!(c.take("k 5 1e-8").remaining, 4);
    assert_eq!(c.peek("k").tokens(), "4");
    for call in ["TB.PENALISE k 5", "TB.SYNC k 0", "TB.REFUND k 1", "TB.STATE k blob"] {
        assert!(c.error(call).starts_with("NOPERM"), "{call}");
    }
    assert_eq!(c.peek("k").tokens(), "4");
}

#[test]
fn the_commands_are_in_their_categories_where_the_server_has_them() {
    let server = Server::start();
    let mut c = server.connect();
    let version = server.version();
    // Not ACL CAT with a name: on 7.4 that knows the server's own commands alone.
    let category = |c: &mut Connection, name: &str| {
        words(&c.ask("ACL CAT")).contains(name).then(|| {
            let commands = words(&c.ask(&format!("COMMAND LIST FILTERBY ACLCAT {name}")));
            commands.iter().map(|name| name.to_lowercase()).collect::<BTreeSet<_>>()
        })
    };
    let all = category(&mut c, "tokenbucket");
    if version >= (7, 4) {
        let expected = ["tb.bconsume", "tb.consume", "tb.mconsume", "tb.peek", "tb.penalise", "tb.refund", "tb.sync"];
        assert_eq!(all, Some(expected.map(str::to_owned).into()));
    } else if version < (7, 2) {
        assert_eq!(all, None);
    }
    if version >= (7, 2) {
        let mut has = |name: &str, command: &str| category(&mut c, name).unwrap().contains(command);
        assert!(has("dangerous", "tb.state"));
        assert!(!has("dangerous", "tb.consume"));
        assert!(has("read", "tb.peek") && !has("write", "tb.peek"));
        for write in ["tb.consume", "tb.mconsume", "tb.bconsume", "tb.penalise", "tb.sync", "tb.refund"] {
            assert!(has("write", write) && !has("read", write), "{write}");
        }
    }
}

// ---- INFO

const COUNTERS: [&str; 19] = [
    "granted",
    "reserved",
    "forced",
    "denied_empty",
    "denied_frozen",
    "denied_window",
    "denied_never",
    "penalties",
    "penalties_cut",
    "syncs_applied",
    "syncs_ignored",
    "refunds",
    "limit_changes",
    "waits",
    "waits_timed_out",
    "waits_refused",
    "buckets",
    "clients_waiting",
    "longest_queue",
];

#[test]
fn info_counts_what_was_answered() {
    let server = Server::start();
    let mut c = server.connect();
    let count =
        |c: &mut Connection, name: &str| -> i64 { c.info("tokenbucket", &format!("tokenbucket_{name}")).parse().unwrap() };
    let mut expected = std::collections::BTreeMap::from(COUNTERS.map(|name| (name, 0)));
    let steps: [(&str, &[(&str, i64)]); 20] = [
        ("TB.CONSUME k 5 0.01 3", &[("granted", 1), ("buckets", 1)]),
        ("TB.CONSUME k 5 0.01 9 UPTO", &[("granted", 1)]),
        ("TB.CONSUME k 5 0.01", &[("denied_empty", 1)]),
        ("TB.CONSUME k 5 0.01 2 MAXWAIT 3600", &[("reserved", 1)]),
        ("TB.CONSUME k 5 0.01 2 FORCE", &[("forced", 1)]),
        ("TB.CONSUME k 5 0.01 6", &[("denied_never", 1)]),
        ("TB.PENALISE k 100", &[("penalties", 1)]),
        ("TB.CONSUME k 5 0.01", &[("denied_frozen", 1)]),
        ("TB.CONSUME k 6 0.01", &[("denied_frozen", 1), ("limit_changes", 1)]),
        ("TB.CONSUME other 5 0.01", &[("granted", 1), ("buckets", 1)]),
        ("TB.SYNC other 2 RESET 600", &[("syncs_applied", 1)]),
        ("TB.CONSUME other 5 0.01 3", &[("denied_window", 1)]),
        ("TB.SYNC other 3 RESET 600", &[("syncs_ignored", 1)]),
        ("TB.REFUND other 1", &[("refunds", 1)]),
        ("TB.PENALISE third 1e11", &[("penalties", 1), ("penalties_cut", 1), ("buckets", 1)]),
        ("TB.PEEK k", &[]),
        ("TB.CONSUME k -1 0.01", &[]),
        ("DEL third", &[("buckets", -1)]),
        ("TB.BCONSUME fourth 5 0.01 3 0", &[("granted", 1), ("buckets", 1)]),
        ("TB.BCONSUME fourth 5 0.01 3 0.001", &[("denied_empty", 1), ("waits", 1), ("waits_timed_out", 1)]),
    ];
    for (step, (command, counted)) in steps.into_iter().enumerate() {
        c.ask(command);
        for (name, by) in counted {
            *expected.get_mut(name).unwrap() += by;
        }
        for (name, count_expected) in &expected {
            let found = count(&mut c, name);
            assert_eq!(found, *count_expected, "{name} after step {step}, {command}");
        }
    }
}

#[test]
fn info_has_one_section_of_the_module() {
    let server = Server::start();
    let mut c = server.connect();
    let ours = |c: &mut Connection, section: &str| -> BTreeSet<String> {
        let fields = c.info_fields(section).into_keys();
        let ours = fields.filter_map(|name| name.strip_prefix("tokenbucket_").map(str::to_owned));
        // A debug build may count more.
        ours.filter(|name| !name.starts_with("debug_")).collect()
    };
    for section in ["tokenbucket", "modules", "everything"] {
        assert_eq!(ours(&mut c, section), COUNTERS.map(str::to_owned).into(), "INFO {section}");
    }
    assert!(c.text("INFO tokenbucket").contains("# tokenbucket_stats\r\n"));
    assert_eq!(ours(&mut c, "default"), BTreeSet::new());
}

// ---- CONFIG

const SETTINGS: [(&str, &str); 5] = [
    ("max-penalty", "604800"),
    ("max-window", "2678400"),
    ("vendor-limit-ttl", "3600"),
    ("max-fill-time", "3155760000"),
    ("max-waiting", "100000"),
];

#[test]
fn the_settings_have_their_defaults_and_can_be_set() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(pairs(c.ask("CONFIG GET tokenbucket.*")).len(), SETTINGS.len());
    for (name, default) in SETTINGS {
        let name = format!("tokenbucket.{name}");
        assert_eq!(c.config(&name), default, "{name}");
        c.config_set(&name, "100");
        assert_eq!(c.config(&name), "100", "{name}");
    }
}

#[test]
fn a_setting_out_of_range_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    for (name, default) in SETTINGS {
        for value in ["-1", "x", "1.5", "99999999999999999999", "1e3", ""] {
            let error = c.error_bytes(&["CONFIG", "SET", &format!("tokenbucket.{name}"), value]);
            assert!(error.starts_with("ERR"), "{name} {value}: {error}");
        }
        assert_eq!(c.config(&format!("tokenbucket.{name}")), default);
    }
    for (name, value) in [
        ("max-fill-time", "3155760001"),
        ("max-fill-time", "0"),
        ("vendor-limit-ttl", "0"),
        ("max-penalty", "3155760001"),
        ("max-window", "3155760001"),
        ("max-waiting", "10000001"),
    ] {
        let error = c.error(&format!("CONFIG SET tokenbucket.{name} {value}"));
        assert!(error.starts_with("ERR"), "{name} {value}: {error}");
    }
}

#[test]
fn the_settings_come_from_the_configuration_file() {
    let mut builder = Server::builder();
    for (name, _) in SETTINGS {
        builder = builder.conf(format!("tokenbucket.{name} 77"));
    }
    let server = builder.start();
    let mut c = server.connect();
    for (name, _) in SETTINGS {
        assert_eq!(c.config(&format!("tokenbucket.{name}")), "77", "{name}");
    }
    assert_eq!(c.penalise("k 100"), 77_000);
}

#[test]
fn the_settings_come_from_the_arguments_of_loadmodule() {
    let arguments = SETTINGS.map(|(name, _)| format!("{name} 77")).join(" ");
    let server = Server::builder().module_arguments(&arguments).start();
    let mut c = server.connect();
    for (name, _) in SETTINGS {
        assert_eq!(c.config(&format!("tokenbucket.{name}")), "77", "{name}");
    }
    assert_eq!(c.penalise("k 100"), 77_000);
}

#[test]
fn a_setting_that_cannot_be_is_a_server_that_does_not_start() {
    for line in [
        "tokenbucket.max-penalty -1",
        "tokenbucket.max-penalty x",
        "tokenbucket.max-fill-time 3155760001",
        "tokenbucket.no-such-setting 5",
    ] {
        let started = Server::builder().conf(line).try_start();
        assert!(refused(started), "{line}");
    }
    for arguments in ["max-penalty -1", "max-penalty x", "max-penalty", "max-fill-time 3155760001", "no-such-setting 5"] {
        let started = Server::builder().module_arguments(arguments).try_start();
        assert!(refused(started), "{arguments}");
    }
}

/// Whether it ended in order: not started, and not crashed.
fn refused(started: Result<Server, String>) -> bool {
    started.is_err_and(|log| !log.contains("crashed by signal"))
}

#[test]
fn the_settings_are_kept_by_config_rewrite() {
    let mut server = Server::start();
    let mut c = server.connect();
    c.config_set("tokenbucket.max-penalty", "60");
    c.ok("CONFIG REWRITE");
    server.shut_down("NOSAVE");
    server.start_again();
    let mut c = server.connect();
    assert_eq!(c.config("tokenbucket.max-penalty"), "60");
    assert_eq!(c.config("tokenbucket.max-window"), "2678400");
}

#[test]
fn a_policy_that_can_evict_buckets_is_warned_of_in_the_log() {
    let warned = |server: &Server| {
        let log = server.log().to_lowercase();
        log.lines().any(|line| line.contains("tokenbucket") && line.contains("evict"))
    };
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = Server::builder().conf("maxmemory 100mb").conf(format!("maxmemory-policy {policy}")).start();
        wait_until("the warning", || warned(&server));
    }
    let server = Server::builder().conf("maxmemory 100mb").conf("maxmemory-policy noeviction").start();
    assert!(!warned(&server), "{}", server.log());
    server.connect().config_set("maxmemory-policy", "allkeys-lfu");
    wait_until("the warning", || warned(&server));
}

// ---- keyspace events

#[test]
fn penalties_and_syncs_are_keyspace_events() {
    let server = Server::builder().conf("notify-keyspace-events KEd").start();
    let mut listener = server.connect_resp3();
    for channel in ["__keyevent@0__:tb.penalise", "__keyevent@0__:tb.sync", "__keyspace@0__:k"] {
        listener.subscribe(channel);
    }
    let mut c = server.connect();
    c.take("k 10 0.01");
    c.sync("k 3");
    c.penalise("k 1");
    let heard: Vec<_> = listener
        .pushes()
        .into_iter()
        .map(|(kind, data)| {
            assert_eq!(kind, PushKind::Message);
            (text(&data[0]), text(&data[1]))
        })
        .collect();
    let heard: Vec<_> = heard.iter().map(|(channel, message)| (channel.as_str(), message.as_str())).collect();
    assert_eq!(
        heard,
        [
            ("__keyspace@0__:k", "tb.sync"),
            ("__keyevent@0__:tb.sync", "k"),
            ("__keyspace@0__:k", "tb.penalise"),
            ("__keyevent@0__:tb.penalise", "k"),
        ]
    );
}

#[test]
fn nothing_else_is_a_keyspace_event() {
    let server = Server::builder().conf("notify-keyspace-events KEA").start();
    let mut listener = server.connect_resp3();
    listener.subscribe("__keyspace@0__:k");
    let mut c = server.connect();
    c.take("k 10 0.01 4");
    c.take("k 10 0.02 2");
    c.consume("k 10 0.02 9");
    c.consume("k 10 0.02 11");
    c.consume("k 10 0.02 0");
    c.consume("k 10 0.02 2 FORCE");
    c.consume("k 10 0.02 9 MAXWAIT 3600");
    c.refund("k 11");
    c.sync("k 10");
    c.sync("k 0 RESET 0");
    c.peek("k");
    assert_eq!(listener.pushes(), []);
    // It listened all the while.
    c.penalise("k 1");
    assert_eq!(listener.pushes().len(), 1);
}

#[test]
fn events_of_the_module_class_are_sent_only_where_asked_for() {
    let server = Server::builder().conf("notify-keyspace-events KE$").start();
    let mut listener = server.connect_resp3();
    listener.subscribe("__keyspace@0__:k");
    let mut c = server.connect();
    c.penalise("k 1");
    assert_eq!(listener.pushes(), []);
}

// ---- MULTI, WATCH, scripts, functions

#[test]
fn a_transaction_runs_the_commands_in_order() {
    let server = Server::start();
    let mut c = server.connect();
    let replies = c.transaction(&[
        "TB.CONSUME k 5 0.01 5",
        "TB.CONSUME k 5 0.01",
        "TB.REFUND k 2",
        "TB.PENALISE k 100",
        "TB.SYNC k 0",
        "TB.PEEK k",
    ]);
    assert_eq!(consumed(&replies[0]).verdict(), (1, "granted", 0));
    assert_eq!(consumed(&replies[1]).verdict(), (0, "empty", 0));
    assert_eq!(int(&replies[2]), 2);
    assert_left_of(100_000, int(&replies[3]));
    assert_eq!(replies[4], Value::Array(vec![Value::Int(0), Value::Int(0)]));
    assert_left_of(100_000, int(&field(&replies[5], "frozen-ms")));
}

#[test]
fn a_discarded_transaction_takes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("MULTI");
    c.ask("TB.CONSUME k 5 0.01 5");
    c.ok("DISCARD");
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn a_bad_argument_in_a_transaction_fails_alone() {
    let server = Server::start();
    let mut c = server.connect();
    let replies = c.transaction(&["TB.CONSUME k 5 0.01 2", "TB.CONSUME k 0 0.01", "TB.CONSUME k 5 0.01 2"]);
    assert_eq!(consumed(&replies[0]).verdict(), (1, "granted", 3));
    assert!(error_text(&replies[1]).unwrap().starts_with("ERR capacity must be"));
    assert_eq!(consumed(&replies[2]).verdict(), (1, "granted", 1));
}

/// Whether a transaction that watched `k` was aborted by what another did.
fn aborted(watcher: &mut Connection, other: &mut Connection, call: &str) -> bool {
    watcher.ok("WATCH k");
    other.ask(call);
    watcher.ok("MULTI");
    watcher.ask("PING");
    watcher.ask("EXEC") == Value::Nil
}

#[test]
fn a_watch_is_woken_by_what_changes_the_bucket_and_by_nothing_else() {
    let server = Server::start();
    let (mut watcher, mut other) = (server.connect(), server.connect());
    let mut woken = |call: &str| aborted(&mut watcher, &mut other, call);
    assert!(!woken("TB.PEEK k"));
    assert!(!woken("TB.CONSUME k 10 0.01 0"));
    assert!(!woken("TB.CONSUME k 10 0.01 11"));
    assert!(!woken("TB.REFUND k 1"));
    assert!(!woken("TB.SYNC k 5 RESET 0"));

    assert!(woken("TB.CONSUME k 10 0.01 8"), "created");
    assert!(!woken("TB.CONSUME k 10 0.01 8"), "denied");
    assert!(!woken("TB.CONSUME k 10 0.01 11"), "never");
    assert!(!woken("TB.CONSUME k 10 0.01 8 MAXWAIT 1"), "denied");
    assert!(!woken("TB.CONSUME k 10 0.01 0 FORCE"), "nothing taken");
    assert!(!woken("TB.CONSUME k -1 0.01"), "an error");
    assert!(!woken("TB.PEEK k"));
    assert!(!woken("TB.SYNC k 9"), "nothing lowered");
    assert!(!woken("TB.REFUND k 0"), "nothing given back");

    assert!(woken("TB.CONSUME k 10 0.01 1"), "granted");
    assert!(woken("TB.CONSUME k 10 0.02 8"), "another limit stored");
    assert!(woken("TB.CONSUME k 10 0.02 9 MAXWAIT 3600"), "reserved");
    assert!(woken("TB.CONSUME k 10 0.02 1 FORCE"), "forced");
    assert!(woken("TB.REFUND k 1"), "refunded");
    assert!(woken("TB.SYNC k 0 RESET 60 LIMIT 3"), "lowered");
    assert!(woken("TB.PENALISE k 1000"), "penalised");
    assert!(!woken("TB.CONSUME k 10 0.02"), "frozen");
}

#[test]
fn a_script_gets_what_a_client_gets() {
    let server = Server::start();
    let mut c = server.connect();
    let script = "local reply = redis.call('TB.CONSUME', KEYS[1], 5, '0.01', ARGV[1]) \
        return {#reply, type(reply[1]), type(reply[5]), reply[1], reply[2], reply[5]}";
    let reply = array(c.ask_bytes(&["EVAL", script, "1", "k", "2"]));
    assert_eq!(int(&reply[0]), 5);
    let types_and_status = [&reply[1], &reply[2], &reply[5]].map(text);
    assert_eq!(types_and_status, ["number", "string", "granted"]);
    assert_eq!((int(&reply[3]), int(&reply[4])), (1, 3));
    let denied = c.ask_bytes(&["EVAL", "return redis.call('TB.CONSUME', KEYS[1], 5, '0.01', 4)", "1", "k"]);
    assert_eq!(consumed(&denied).verdict(), (0, "empty", 3));
}

#[test]
fn a_rate_that_a_script_computed_is_the_same_rate() {
    let server = Server::start();
    let mut c = server.connect();
    // The server prints a script's 0.1 as 0.10000000000000001.
    c.take("k 5 0.1 5");
    c.consume("k 5 0.1 2");
    let before = c.footprint("k");
    let script = "return redis.call('TB.CONSUME', KEYS[1], 5, 1 / 10, 2)";
    let reply = consumed(&c.ask_bytes(&["EVAL", script, "1", "k"]));
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert_eq!(c.footprint("k"), before);
}

#[test]
fn a_script_can_catch_an_error_and_learns_its_text() {
    let server = Server::start();
    let mut c = server.connect();
    let script = "return redis.pcall('TB.CONSUME', KEYS[1], 5, 0)['err']";
    let error = text(&c.ask_bytes(&["EVAL", script, "1", "k"]));
    assert_eq!(error, "ERR rate must be a number above 0, at most 1000000000000");
}

#[test]
fn a_read_only_script_may_peek_and_not_consume() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8");
    let before = c.footprint("k");
    let peek = c.ask_bytes(&["EVAL_RO", "return redis.call('TB.PEEK', KEYS[1])", "1", "k"]);
    assert_eq!(text(&field(&peek, "tokens")), "4");
    for call in ["'TB.CONSUME', KEYS[1], 5, 1", "'TB.PENALISE', KEYS[1], 5", "'TB.SYNC', KEYS[1], 0", "'TB.REFUND', KEYS[1], 1"] {
        let error = c.error_bytes(&["EVAL_RO", &format!("return redis.call({call})"), "1", "k"]);
        assert!(error.contains("Write commands are not allowed"), "{error}");
    }
    assert_eq!(c.footprint("k"), before);
}

#[test]
fn a_function_may_call_the_commands() {
    let server = Server::start();
    let mut c = server.connect();
    let library = "#!lua name=limits\n\
        redis.register_function('allow', function(keys, args)\n\
            return redis.call('TB.CONSUME', keys[1], 5, '0.01', args[1])\n\
        end)";
    c.ask_bytes(&["FUNCTION", "LOAD", library]);
    assert_eq!(consumed(&c.ask("FCALL allow 1 k 3")).verdict(), (1, "granted", 2));
    assert_eq!(consumed(&c.ask("FCALL allow 1 k 3")).verdict(), (0, "empty", 2));
}

// ---- client-side caching

#[test]
fn a_client_cache_is_invalidated_by_what_changes_the_bucket_and_by_nothing_else() {
    let server = Server::start();
    let (mut cache, mut other) = (server.connect_resp3(), server.connect());
    other.take("k 10 0.01 8");
    cache.ok("CLIENT TRACKING ON");
    let mut invalidated = |call: &str| {
        cache.peek("k"); // what the cache now holds
        other.ask(call);
        let pushes = cache.pushes();
        for (kind, data) in &pushes {
            assert_eq!(*kind, PushKind::Invalidate);
            assert_eq!(words(&data[0]).into_iter().collect::<Vec<_>>(), ["k"]);
        }
        !pushes.is_empty()
    };
    for call in [
        "TB.CONSUME k 10 0.01 8",
        "TB.CONSUME k 10 0.01 11",
        "TB.CONSUME k 10 0.01 0",
        "TB.CONSUME k 10 0.01 8 MAXWAIT 1",
        "TB.CONSUME k 10 0.01 x",
        "TB.SYNC k 9",
        "TB.REFUND k 0",
        "TB.PEEK k",
    ] {
        assert!(!invalidated(call), "{call}");
    }
    for call in ["TB.CONSUME k 10 0.01 1", "TB.CONSUME k 10 0.02 8", "TB.REFUND k 1", "TB.SYNC k 0 RESET 60", "TB.PENALISE k 100"]
    {
        assert!(invalidated(call), "{call}");
    }
}

// ---- other types and other keys

#[test]
fn a_key_of_another_type_is_an_error_and_stays_as_it_is() {
    let server = Server::start();
    let mut c = server.connect();
    for make in ["SET k text", "SET k 5", "RPUSH k a b", "HSET k f v", "SADD k a", "ZADD k 1 a", "XADD k * f v", "PFADD k a"] {
        c.ask("DEL k");
        c.ask(make);
        let (before, was) = (c.footprint("k"), c.ask("DUMP k"));
        for call in CALLS.into_iter().chain([
            "TB.CONSUME k 10 0.01 0",
            "TB.CONSUME k 10 0.01 11",
            "TB.CONSUME k 10 0.01 5 FORCE",
            "TB.CONSUME k 10 0.01 5 MAXWAIT 100",
            "TB.PENALISE k UNTIL 1",
            "TB.SYNC k 5 RESET 0",
            "TB.REFUND k 0",
        ]) {
            assert_eq!(c.error(call), "WRONGTYPE Operation against a key holding the wrong kind of value", "{call} after {make}");
        }
        assert_eq!(c.footprint("k"), before, "{make}");
        assert_eq!(c.ask("DUMP k"), was, "{make}");
    }
}

#[test]
fn the_server_s_own_commands_refuse_a_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 2");
    for call in ["GET k", "INCR k", "APPEND k x", "LPUSH k x", "HGETALL k", "SADD k x", "ZADD k 1 x", "XLEN k"] {
        assert!(c.error(call).starts_with("WRONGTYPE"), "{call}");
    }
    assert_eq!(c.take("k 5 1e-8").remaining, 2);
    c.ok("SET k text"); // as any key can be overwritten
    assert_eq!(c.text("GET k"), "text");
}

#[test]
fn a_key_may_be_any_bytes() {
    let server = Server::start();
    let mut c = server.connect();
    let keys: [&[u8]; 10] = [
        b"",
        b"\0",
        b"a\0b",
        b"a\0c",
        b"line\r\nbreak",
        b"\xff\xfe\x00\x80",
        b"%s%n%d",
        b" a b ",
        "\u{1f600}".as_bytes(),
        &[b'x'; 70_000],
    ];
    for key in keys {
        let shown = key[..key.len().min(20)].escape_ascii();
        let consume: [&[u8]; 5] = [b"TB.CONSUME", key, b"5", b"1e-8", b"2"];
        assert_eq!(consumed(&c.ask_bytes(&consume)).verdict(), (1, "granted", 3), "{shown}");
        assert_eq!(c.ask_bytes(&[b"TB.REFUND", key, b"1"]), Value::Int(4), "{shown}");
        let synced = c.ask_bytes(&[b"TB.SYNC", key, b"3"]);
        assert_eq!(synced, Value::Array(vec![Value::Int(1), Value::Int(3)]), "{shown}");
        let peeked = c.ask_bytes(&[b"TB.PEEK", key]);
        assert_eq!(text(&field(&peeked, "tokens")), "3", "{shown}");
        assert_eq!(c.ask_bytes(&[b"TB.PENALISE", key, b"100"]), Value::Int(100_000), "{shown}");
    }
    assert_eq!(c.int("DBSIZE"), 10);
}

// ---- replicas and memory

#[test]
fn a_replica_refuses_to_write_and_can_be_peeked_at() {
    let primary = Server::builder().tcp().start();
    let replica = Server::builder().tcp().start();
    let mut c = primary.connect();
    c.take("k 10 1e-8 4");
    c.sync("k 5 LIMIT 8 RESET 600");
    c.penalise("bare 100");
    replica.replicate(&primary);
    let mut r = replica.connect();
    for call in CALLS.into_iter().chain(["TB.CONSUME k 10 1e-8 0", "TB.STATE k blob"]) {
        if call != "TB.PEEK k" {
            let error = r.error(call);
            assert_eq!(error, "READONLY You can't write against a read only replica.", "{call}");
        }
    }
    let script = "return redis.call('TB.CONSUME', KEYS[1], 10, 1)";
    assert!(r.error_bytes(&["EVAL", script, "1", "k"]).contains("READONLY"));
    let bucket = r.peek("k");
    assert_eq!((bucket.tokens(), bucket.vendor_remaining), ("6", Some(5)));
    assert_eq!(bucket.limit(), ("10", "1", "100000000"));
    assert_left_of(100_000, r.peek("bare").frozen_ms);
    assert_eq!(r.ask("TB.PEEK missing"), Value::Nil);
}

#[test]
fn a_primary_with_too_few_replicas_writes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    c.config_set("min-replicas-to-write", "1");
    for call in CALLS {
        if call != "TB.PEEK k" {
            assert!(c.error(call).starts_with("NOREPLICAS"), "{call}");
        }
    }
    assert_eq!(c.peek("k").tokens(), "6");
}

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

#[test]
fn without_memory_no_bucket_is_created() {
    let server = Server::start();
    let mut c = server.connect();
    c.config_set("maxmemory", "1");
    for call in [
        "TB.CONSUME k 10 0.01",
        "TB.CONSUME k 10 0.01 20 UPTO",
        "TB.CONSUME k 10 0.01 20 FORCE",
        "TB.CONSUME k 10 0.01 2 MAXWAIT 5",
        "TB.PENALISE k 10",
        "TB.PENALISE k UNTIL 1",
        "TB.SYNC k 5",
        "TB.SYNC k 5 LIMIT 3 RESET 0",
    ] {
        assert_eq!(c.error(call), OUT_OF_MEMORY, "{call}");
    }
    // What creates nothing is answered.
    assert_eq!(c.consume("k 10 0.01 0").verdict(), (1, "granted", 10));
    assert_eq!(c.consume("k 10 0.01 11").verdict(), (0, "never", 10));
    assert_eq!(c.sync("k 5 RESET 0"), (0, 5));
    assert_eq!(c.refund("k 5"), None);
    assert_eq!(c.ask("TB.PEEK k"), Value::Nil);
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn without_memory_existing_buckets_go_on_limiting() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 2");
    c.penalise("bare 0");
    c.config_set("maxmemory", "1");
    assert_eq!(c.error("SET other text"), OUT_OF_MEMORY);
    assert_eq!(c.take("k 10 0.01 2").remaining, 6);
    assert_eq!(c.consume("k 10 0.01 7").verdict(), (0, "empty", 6));
    assert_eq!(c.take("k 10 0.02 2").remaining, 4);
    assert_eq!(c.consume("bare 10 0.01").verdict(), (0, "empty", 0));
    assert_eq!(c.refund("k 1"), Some(5));
    assert_eq!(c.sync("k 3 LIMIT 9 RESET 60"), (1, 3));
    assert_eq!(c.penalise("k 100"), 100_000);
    assert_eq!(c.consume("k 10 0.02").verdict(), (0, "frozen", 0));
    let script = "return redis.call('TB.PENALISE', KEYS[1], 200)";
    let penalised = c.ask_bytes(&["EVAL", script, "1", "k"]);
    // Redis refuses a script without flags as a whole.
    assert!(penalised == Value::Int(200_000) || error_text(&penalised).unwrap().starts_with("OOM"));
}

#[test]
fn an_evicted_bucket_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 9");
    c.config_set("maxmemory-policy", "allkeys-lru");
    c.config_set("maxmemory", "1");
    wait_until("the bucket to be evicted", || {
        c.ask("PING");
        c.int("DBSIZE") == 0
    });
    c.config_set("maxmemory", "0");
    assert_eq!(c.take("k 10 0.01").remaining, 9);
}
