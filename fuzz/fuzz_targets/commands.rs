//! The module as a server sees it: whole commands with any arguments, in the process of
//! the fuzzer, which is a server as far as the module asks for one. What goes out to
//! replicas is carried out on a second database, and both must be the same.
//!
//! Keys do not expire here and nobody waits: that is for real servers, see `tests/`.

#![no_main]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_void};
use std::ptr::{null, null_mut};
use std::sync::Once;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redis_module::raw;
use redis_tokenbucket as _;

type Run = unsafe extern "C" fn(*mut Context, *mut *mut Text, c_int) -> c_int;
type Text = Vec<u8>;

#[allow(improper_ctypes)] // a server's strings are ours
unsafe extern "C" {
    fn RedisModule_OnLoad(ctx: *mut Context, argv: *mut *mut Text, argc: c_int) -> c_int;
}

/// What the module takes for a context: it looks for the API in its first word.
#[repr(C)]
struct Context {
    api: unsafe extern "C" fn(*const c_char, *mut *const c_void) -> c_int,
}

/// What is at a key.
enum Value {
    Bucket { value: *mut c_void, expire_at_ms: i64 },
    Other,
}

#[derive(Debug, PartialEq)]
enum Part {
    Integer(i64),
    Text(Vec<u8>),
    Null,
    /// So many parts follow.
    Array(usize),
    Error(String),
}

#[derive(Default)]
struct World {
    /// With their arity, which the server checks.
    commands: HashMap<String, (Run, c_int)>,
    created: String,
    methods: Option<raw::RedisModuleTypeMethods>,
    /// The primary's, and the replica's.
    databases: [BTreeMap<Text, Value>; 2],
    /// Which of them the call is on.
    on: usize,
    out_of_memory: bool,
    reply: Vec<Part>,
    effects: Vec<[Text; 3]>,
    /// The states that have gone out since the databases were empty.
    states: Vec<Text>,
    arguments: Vec<Text>,
    digest: Text,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fn world<R>(work: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(work)
}

/// An open key.
struct Key(Text);

static mut CONTEXT: Context = Context { api };

// ---- the API

const OK: c_int = 0;
const ERR: c_int = 1;

unsafe extern "C" fn api(name: *const c_char, place: *mut *const c_void) -> c_int {
    // SAFETY: the module passes the name of a function and the place for it.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().strip_prefix("RedisModule_").unwrap();
    macro_rules! functions {
        ($($name:literal => $function:expr,)*) => {
            match name {
                $($name => $function as *const c_void,)*
                _ => return ERR, // none of what it has to have
            }
        };
    }
    let function = functions! {
        "Alloc" => alloc, "Free" => free, "SetModuleAttribs" => nothing, "SetModuleOptions" => nothing,
        "CreateCommand" => create_command, "GetCommand" => something, "SetCommandInfo" => describe,
        "RegisterNumericConfig" => nothing, "LoadConfigs" => nothing, "RegisterInfoFunc" => nothing,
        "SubscribeToServerEvent" => nothing, "GetDetachedThreadSafeContext" => something, "Log" => log,
        "CreateDataType" => create_type, "CreateString" => something, "FreeString" => nothing, "Call" => nothing,
        "GetContextFlags" => flags, "AvoidReplicaTraffic" => nothing, "GetSelectedDb" => selected,
        "IsKeysPositionRequest" => nothing, "StringPtrLen" => string, "OpenKey" => open, "CloseKey" => close,
        "KeyType" => key_type, "ModuleTypeGetType" => type_of, "ModuleTypeGetValue" => value,
        "ModuleTypeSetValue" => set_value, "ModuleTypeReplaceValue" => replace_value,
        "GetAbsExpire" => expire, "SetAbsExpire" => set_expire, "Replicate" => replicate,
        "ReplicateVerbatim" => replicate_verbatim, "SignalModifiedKey" => nothing, "NotifyKeyspaceEvent" => nothing,
        "ReplyWithLongLong" => reply_integer, "ReplyWithStringBuffer" => reply_text, "ReplyWithNull" => reply_null,
        "ReplyWithSimpleString" => reply_simple, "ReplyWithArray" => reply_array, "ReplyWithMap" => reply_map,
        "ReplyWithError" => reply_error, "WrongArity" => wrong_arity, "CreateTimer" => nothing, "StopTimer" => nothing,
        "DigestAddStringBuffer" => digest, "DigestEndSequence" => nothing,
    };
    // SAFETY: as above.
    unsafe { *place = function };
    OK
}

extern "C" fn nothing() -> *const c_void {
    null()
}
extern "C" fn something() -> *const c_void {
    std::ptr::dangling()
}
unsafe extern "C" fn alloc(size: usize) -> *mut c_void {
    unsafe { libc::malloc(size) }
}
unsafe extern "C" fn free(place: *mut c_void) {
    unsafe { libc::free(place) }
}
unsafe extern "C" fn create_command(_: *mut Context, name: *const c_char, run: Run) -> c_int {
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    world(|world| {
        world.commands.insert(name.clone(), (run, 0));
        world.created = name;
    });
    OK
}
/// Follows the creation of the command.
unsafe extern "C" fn describe(_: *const c_void, info: *const raw::RedisModuleCommandInfo) -> c_int {
    let arity = unsafe { (*info).arity };
    world(|world| world.commands.get_mut(&world.created).unwrap().1 = arity);
    OK
}
unsafe extern "C" fn create_type(
    _: *mut Context,
    _: *const c_char,
    _: c_int,
    methods: *const raw::RedisModuleTypeMethods,
) -> *const c_void {
    let methods = unsafe { std::ptr::read(methods) };
    world(|world| world.methods = Some(methods));
    something()
}
/// The format of the module's lines is "%s".
unsafe extern "C" fn log(_: *mut Context, _: *const c_char, _: *const c_char, text: *const c_char) {
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if text.contains("a fault in the module") {
        // A second panic would hide what the first said.
        eprintln!("{text}");
        std::process::abort();
    }
}
extern "C" fn flags(_: *mut Context) -> c_int {
    let (out_of_memory, replicated) = world(|world| (world.out_of_memory, world.on == 1));
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let flags = flag(out_of_memory, raw::REDISMODULE_CTX_FLAGS_OOM)
        | flag(replicated, raw::REDISMODULE_CTX_FLAGS_REPLICATED)
        | flag(!replicated, raw::REDISMODULE_CTX_FLAGS_MASTER)
        | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    flags.cast_signed()
}
extern "C" fn selected(_: *mut Context) -> c_int {
    0
}
unsafe extern "C" fn string(text: *const Text, len: *mut usize) -> *const u8 {
    unsafe {
        if !len.is_null() {
            *len = (*text).len();
        }
        (*text).as_ptr()
    }
}
unsafe extern "C" fn open(_: *mut Context, name: *const Text, mode: c_int) -> *mut Key {
    let name = unsafe { &*name }.clone();
    let there = world(|world| world.databases[world.on].contains_key(&name));
    let writes = mode.cast_unsigned() & raw::REDISMODULE_WRITE != 0;
    if there || writes { Box::into_raw(Box::new(Key(name))) } else { null_mut() }
}
unsafe extern "C" fn close(key: *mut Key) {
    if !key.is_null() {
        drop(unsafe { Box::from_raw(key) });
    }
}
fn at<R>(key: *mut Key, work: impl FnOnce(Option<&mut Value>) -> R) -> R {
    world(|world| work(unsafe { key.as_ref() }.and_then(|key| world.databases[world.on].get_mut(&key.0))))
}
unsafe extern "C" fn key_type(key: *mut Key) -> c_int {
    let kind = at(key, |value| match value {
        None => raw::REDISMODULE_KEYTYPE_EMPTY,
        Some(Value::Other) => raw::REDISMODULE_KEYTYPE_STRING,
        Some(Value::Bucket { .. }) => raw::REDISMODULE_KEYTYPE_MODULE,
    });
    c_int::try_from(kind).expect("a small number")
}
unsafe extern "C" fn type_of(key: *mut Key) -> *const c_void {
    at(key, |value| if matches!(value, Some(Value::Bucket { .. })) { something() } else { null() })
}
unsafe extern "C" fn value(key: *mut Key) -> *mut c_void {
    at(key, |value| match value {
        Some(Value::Bucket { value, .. }) => *value,
        _ => null_mut(),
    })
}
unsafe extern "C" fn set_value(key: *mut Key, _: *const c_void, value: *mut c_void) -> c_int {
    world(|world| {
        let name = unsafe { &*key }.0.clone();
        let old = world.databases[world.on].insert(name, Value::Bucket { value, expire_at_ms: -1 });
        assert!(old.is_none(), "a value was written over");
    });
    OK
}
unsafe extern "C" fn replace_value(key: *mut Key, _: *const c_void, new: *mut c_void, old: *mut *mut c_void) -> c_int {
    at(key, |there| match there {
        Some(Value::Bucket { value, .. }) => unsafe { *old = std::mem::replace(value, new) },
        _ => panic!("there is nothing to replace"),
    });
    OK
}
unsafe extern "C" fn expire(key: *mut Key) -> c_longlong {
    at(key, |value| match value {
        Some(Value::Bucket { expire_at_ms, .. }) => *expire_at_ms,
        _ => -1,
    })
}
unsafe extern "C" fn set_expire(key: *mut Key, at_ms: c_longlong) -> c_int {
    at(key, |value| match value {
        Some(Value::Bucket { expire_at_ms, .. }) => *expire_at_ms = at_ms,
        _ => panic!("there is nothing to expire"),
    });
    OK
}
/// The format of the module's effects is "sb".
unsafe extern "C" fn replicate(
    _: *mut Context,
    command: *const c_char,
    _: *const c_char,
    key: *const Text,
    bytes: *const u8,
    len: usize,
) -> c_int {
    let effect =
        unsafe { [CStr::from_ptr(command).to_bytes().to_vec(), (*key).clone(), std::slice::from_raw_parts(bytes, len).to_vec()] };
    world(|world| world.effects.push(effect));
    OK
}
extern "C" fn replicate_verbatim(_: *mut Context) -> c_int {
    world(|world| {
        let effect = world.arguments.clone().try_into().expect("only TB.STATE goes out as it came");
        world.effects.push(effect);
    });
    OK
}
fn reply(part: Part) -> c_int {
    world(|world| world.reply.push(part));
    OK
}
extern "C" fn reply_integer(_: *mut Context, number: c_longlong) -> c_int {
    reply(Part::Integer(number))
}
unsafe extern "C" fn reply_text(_: *mut Context, text: *const u8, len: usize) -> c_int {
    reply(Part::Text(unsafe { std::slice::from_raw_parts(text, len) }.to_vec()))
}
unsafe extern "C" fn reply_simple(_: *mut Context, text: *const c_char) -> c_int {
    reply(Part::Text(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()))
}
extern "C" fn reply_null(_: *mut Context) -> c_int {
    reply(Part::Null)
}
extern "C" fn reply_array(_: *mut Context, len: c_long) -> c_int {
    reply(Part::Array(usize::try_from(len).unwrap()))
}
extern "C" fn reply_map(_: *mut Context, len: c_long) -> c_int {
    reply(Part::Array(2 * usize::try_from(len).unwrap()))
}
unsafe extern "C" fn reply_error(_: *mut Context, text: *const c_char) -> c_int {
    reply(Part::Error(unsafe { CStr::from_ptr(text) }.to_str().expect("text").to_owned()))
}
extern "C" fn wrong_arity(_: *mut Context) -> c_int {
    reply(Part::Error("ERR wrong number of arguments".to_owned()))
}
unsafe extern "C" fn digest(_: *mut c_void, bytes: *const u8, len: usize) {
    let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
    world(|world| world.digest.extend(bytes));
}

// ---- calls

/// Runs a command on one of the databases.
fn run(on: usize, words: &[Text]) -> Vec<Part> {
    let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
    let (run, arity) = world(|world| {
        (world.on, world.arguments) = (on, words.to_vec());
        world.commands[&name]
    });
    let count = c_int::try_from(words.len()).unwrap();
    if (arity > 0 && count != arity) || count < -arity {
        return vec![Part::Error("ERR wrong number of arguments".to_owned())];
    }
    let mut words = words.to_vec();
    let mut pointers: Vec<*mut Text> = words.iter_mut().map(std::ptr::from_mut).collect();
    // SAFETY: as a server calls it.
    assert_eq!(unsafe { run(&raw mut CONTEXT, pointers.as_mut_ptr(), count) }, OK);
    world(|world| std::mem::take(&mut world.reply))
}

/// How many parts of the list a reply is.
fn length(parts: &[Part]) -> usize {
    match parts.first().expect("a reply that is whole") {
        Part::Array(len) => (0..*len).fold(1, |at, _| at + length(&parts[at..])),
        _ => 1,
    }
}

/// All that is in a database: what a bucket is, and when it expires.
fn contents(on: usize) -> BTreeMap<Text, (Text, i64)> {
    let (methods, values) = world(|world| {
        let bucket = |(key, value): (&Text, &Value)| match value {
            Value::Bucket { value, expire_at_ms } => Some((key.clone(), *value, *expire_at_ms)),
            Value::Other => None,
        };
        (world.methods.expect("a type"), world.databases[on].iter().filter_map(bucket).collect::<Vec<_>>())
    });
    let look = |(key, value, expire_at_ms)| {
        // SAFETY: a value of the module's.
        unsafe { methods.digest.expect("a digest")(null_mut(), value) };
        (key, (world(|world| std::mem::take(&mut world.digest)), expire_at_ms))
    };
    values.into_iter().map(look).collect()
}

fn empty() {
    let (methods, values) = world(|world| {
        let databases = world.databases.iter_mut().flat_map(std::mem::take);
        (world.methods.expect("a type"), databases.map(|(_, value)| value).collect::<Vec<_>>())
    });
    for value in values {
        if let Value::Bucket { value, .. } = value {
            // SAFETY: nobody else has it any more.
            unsafe { methods.free.expect("a free")(value) };
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Call<'input> {
    command: u8,
    words: Vec<Word<'input>>,
    out_of_memory: bool,
}

/// A word of a call: one that may fit where it stands, or any bytes.
#[derive(Arbitrary, Debug)]
enum Word<'input> {
    Key(u8),
    Known(u8),
    Number(u16),
    /// One of the states that went out, but for a bit where that is in it.
    State {
        number: u8,
        flipped: Option<u16>,
    },
    Bytes(&'input [u8]),
}

const COMMANDS: [&str; 8] =
    ["TB.CONSUME", "TB.MCONSUME", "TB.BCONSUME", "TB.PENALISE", "TB.SYNC", "TB.REFUND", "TB.PEEK", "TB.STATE"];
const KNOWN: [&str; 24] = [
    "PER",
    "UPTO",
    "FORCE",
    "MAXWAIT",
    "LIMIT",
    "RESET",
    "RESETAT",
    "TOLERANCE",
    "UNTIL",
    "0",
    "1",
    "2",
    "10",
    "0.5",
    "1e-8",
    "1e12",
    "60",
    "86400",
    "100000000000",
    "1.1574074074074073e-05",
    "0.000001",
    "-1",
    "nan",
    "1e-7",
];

fn text(word: &Word<'_>) -> Text {
    match word {
        Word::Key(number) => format!("k{}", number % 5).into_bytes(),
        Word::Known(number) => KNOWN[usize::from(*number) % KNOWN.len()].as_bytes().to_vec(),
        Word::Number(number) => number.to_string().into_bytes(),
        Word::State { number, flipped } => {
            let states = world(|world| world.states.clone());
            let mut state = states.get(usize::from(*number) % states.len().max(1)).cloned().unwrap_or_default();
            if let Some(byte) = flipped.and_then(|bit| state.get_mut(usize::from(bit / 8))) {
                *byte ^= 1 << (flipped.unwrap_or_default() % 8);
            }
            state
        }
        Word::Bytes(bytes) => bytes.to_vec(),
    }
}

fuzz_target!(|calls: Vec<Call<'_>>| {
    static LOADED: Once = Once::new();
    // SAFETY: as a server loads it.
    LOADED.call_once(|| assert_eq!(unsafe { RedisModule_OnLoad(&raw mut CONTEXT, null_mut(), 0) }, OK));
    world(|world| world.databases.iter_mut().for_each(|database| drop(database.insert(b"k4".to_vec(), Value::Other))));
    for call in calls.iter().take(24) {
        let name = COMMANDS[usize::from(call.command) % COMMANDS.len()];
        let words: Vec<Text> = [name.as_bytes().to_vec()].into_iter().chain(call.words.iter().map(text)).collect();
        let before = contents(0);
        world(|world| world.out_of_memory = call.out_of_memory);
        let reply = run(0, &words);
        world(|world| world.out_of_memory = false);
        assert_eq!(length(&reply), reply.len(), "{words:?}: {reply:?}");
        let effects = world(|world| std::mem::take(&mut world.effects));
        if let [Part::Error(error)] = reply.as_slice() {
            let begins = ["ERR ", "WRONGTYPE ", "OOM "].iter().any(|begin| error.starts_with(begin));
            assert!(begins && !error.contains("internal") && error.len() < 300, "{words:?}: {error}");
            assert!(effects.is_empty(), "{words:?}: {error}, and an effect");
        }
        let after = contents(0);
        if effects.is_empty() {
            assert_eq!(before, after, "{words:?} changed something and said nothing");
        }
        world(|world| world.states.extend(effects.iter().map(|[_, _, state]| state.clone())));
        for effect in effects {
            let reply = run(1, &effect);
            assert!(!matches!(reply.as_slice(), [Part::Error(_)]), "{words:?}: the replica refused {effect:?}: {reply:?}");
            world(|world| world.effects.clear());
        }
        assert_eq!(after, contents(1), "{words:?}: the replica has something else");
    }
    empty();
    world(|world| world.states.clear());
});
