//! Settings: the example documents all of them, sources go over each other, and what is wrong is named.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::Path, time::Duration};

use onceward_dispatch::DispatchConfig;
use onceward_server::settings::{Override, Settings, Sources, effective, load};

const EXAMPLE: &str = include_str!("../../../cluster/onceward.example.toml");

fn from_file(text: &str) -> Result<Settings, String> {
    from(text, &[], &[])
}

fn from(text: &str, environment: &[(&str, &str)], overrides: &[(&str, &str)]) -> Result<Settings, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    fs::write(&file, text).unwrap();
    load(&Sources {
        file: Some(file),
        environment: environment.iter().map(|(name, value)| (name.to_string(), value.into())).collect(),
        overrides: overrides
            .iter()
            .map(|(name, value)| Override { name: name.to_string(), value: value.to_string() })
            .collect(),
    })
    .map_err(|error| error.to_string())
}

/// The example with its commented settings switched on.
fn uncommented() -> String {
    let is_setting = |line: &str| {
        let name = line.split([' ', '=']).next().unwrap_or_default();
        line.starts_with("[[")
            || (line.contains(" = ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    };
    let lines = EXAMPLE.lines().map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_states_every_default() {
    let example = from_file(EXAMPLE).expect("the example is valid");
    assert_eq!(effective(&example), effective(&Settings::default()));
}

#[test]
fn the_example_documents_every_setting_and_no_other() {
    let table: toml::Table = uncommented().parse().expect("the example is TOML with everything switched on");
    for declared in Settings::declared() {
        let mut value = Some(&toml::Value::Table(table.clone())).cloned();
        for name in declared.name.split('.') {
            value = match value {
                Some(toml::Value::Table(table)) => table.get(name).cloned(),
                Some(toml::Value::Array(elements)) => elements[0].get(name).cloned(),
                _ => None,
            };
        }
        assert!(value.is_some(), "{} is not in the example", declared.name);
    }
    // With both of each pair set, what is refused must be just that, and no setting as unknown.
    let faults = from_file(&uncommented()).expect_err("secret and secret_file are both set");
    assert!(!faults.contains("is not a setting"), "{faults}");
}

#[test]
fn the_local_cluster_is_valid_and_agrees_with_itself() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cluster/local");
    for number in 1..=3 {
        let file = Some(directory.join(format!("node-{number}.toml")));
        let settings = load(&Sources { file, ..Sources::default() }).expect("valid");
        let own = &settings.nodes()[number - 1];
        assert_eq!(settings.node.id, number as u16);
        assert_eq!(own.http_address, settings.http.listen.to_string());
        assert_eq!(own.peer_address, settings.peers.listen.to_string());
    }
}

#[test]
fn the_environment_goes_over_the_file_and_the_command_line_over_both() {
    let file = "[http]\nmax_in_flight = 1\nmax_headers = 17\nmax_connections = 2";
    let environment = [("ONCEWARD_HTTP__MAX_IN_FLIGHT", "3"), ("ONCEWARD_HTTP__MAX_HEADERS", "18"), ("HOME", "/")];
    let settings = from(file, &environment, &[("http.max_in_flight", "4"), ("http.reset_format", "delta")]).unwrap();
    assert_eq!((settings.http.max_connections, settings.http.max_headers, settings.http.max_in_flight), (2, 18, 4));
    assert_eq!(settings.http.reset_format.as_str(), "delta");
}

#[test]
fn loopback_of_both_families_needs_no_tokens() {
    for listen in ["127.0.0.1:4001", "127.9.9.9:4001", "[::1]:4001"] {
        from("", &[], &[("http.listen", listen)]).expect(listen);
    }
}

#[test]
fn lists_can_be_set_as_toml() {
    let nodes = r#"[{id = 7, http_address = "a:1", peer_address = "b:2"}]"#;
    let settings = from("", &[], &[("cluster.nodes", nodes), ("node.id", "7")]).unwrap();
    assert_eq!(settings.nodes()[0].peer_address, "b:2");
}

#[test]
fn a_node_without_a_list_is_a_cluster_of_its_own() {
    let settings = from_file("[http]\nlisten = \"127.0.0.1:9\"").unwrap();
    assert_eq!(settings.nodes().len(), 1);
    assert_eq!(settings.nodes()[0].http_address, "127.0.0.1:9");
}

/// Each line: a file, and what the refusal must say.
const REFUSED: &[(&str, &[&str])] = &[
    ("[http]\nlisen = \"127.0.0.1:1\"", &["http.lisen is not a setting", "did you mean http.listen?"]),
    ("[htttp]", &["htttp is not a setting", "did you mean http?"]),
    ("[http.tls]\nzzzzzzzz = 1", &["http.tls.zzzzzzzz is not a setting", "cert", "key"]),
    ("node = 3", &["node must be a table"]),
    ("[node]\nid = \"one\"", &["node.id must be an integer", "\"one\""]),
    ("[node]\nid = 0", &["node.id must be from 1 to 65535, not 0"]),
    ("[node]\nid = -1", &["node.id must be an integer from 0 to 65535, not -1"]),
    ("[node]\nid = 70000", &["node.id must be an integer from 0 to 65535, not 70000"]),
    ("[cluster]\ndata_shards = 65", &["cluster.data_shards must be from 1 to 64, not 65"]),
    ("[http]\nlisten = \"localhost\"", &["http.listen must be an address like 127.0.0.1:4001"]),
    ("[http]\nmax_buffered_bytes = 1", &["http.max_buffered_bytes must be from 4194304 to 1073741824, not 1"]),
    ("[http]\nmax_body_bytes = 1", &["http.max_body_bytes must be from 16384 to 4194304, not 1"]),
    ("[http]\nreset_format = \"iso\"", &["http.reset_format must be \"unix\" or \"delta\", not \"iso\""]),
    ("[log]\nlevel = 3", &["log.level must be", "\"warn\""]),
    ("[http]\nlisten = \"0.0.0.0:1\"", &["without tokens a node serves loopback only", "[[auth.tokens]]"]),
    ("[http.tls]\ncert = \"a\"", &["http.tls.cert and http.tls.key go together"]),
    ("[raft]\nheartbeat_ms = 300", &["raft.election_min_ms 400 must be at least twice raft.heartbeat_ms 300"]),
    ("[raft]\nelection_max_ms = 400", &["raft.election_max_ms 400 must be greater than raft.election_min_ms 400"]),
    ("[peers]\nsecurity = \"mtls\"", &["peers.cert is missing", "peers.key is missing", "peers.ca is missing"]),
    ("[peers]\nsecret = \"short\"", &["peers.secret must be 16 to 1024 bytes long, not 5"]),
    ("[peers]\nsecret_file = \"/nowhere/at all\"", &["peers.secret_file: /nowhere/at all"]),
    (
        "[node]\nid = 4\n[cluster]\nnodes = [{id = 1, http_address = \"a:1\", peer_address = \"a:2\"}]",
        &["node.id 4 is not among cluster.nodes"],
    ),
    (
        "[cluster]\nnodes = [{id = 1, http_address = \"a\", peer_address = \"a:0\"}, {id = 1, http_address = \"http://a:1\", peer_address = \"a:1\"}]",
        &[
            "must be 1, 3 or 5 nodes, not 2",
            "cluster.nodes[0].http_address must be host:port",
            "cluster.nodes[0].peer_address must be",
            "cluster.nodes[1].id 1 stands there twice",
            "cluster.nodes[1].http_address must be",
            "peers.secret or peers.secret_file is missing",
        ],
    ),
    ("[webhooks]\nretry_schedule_ms = 5", &["webhooks.retry_schedule_ms must be a list"]),
    ("[webhooks]\nretry_schedule_ms = [5, \"x\"]", &["webhooks.retry_schedule_ms[1] must be a non-negative integer"]),
    (
        "[webhooks]\nretry_schedule_ms = [1, 0, 604800001]",
        &["webhooks.retry_schedule_ms[1] must be from 1 to 604800000, not 0", "webhooks.retry_schedule_ms[2] must be"],
    ),
    (
        "[webhooks]\nretry_schedule_ms = [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
        &["webhooks.retry_schedule_ms must be at most 32 pauses, not 33"],
    ),
    (
        "[webhooks]\nallow_private = [\"127.0.0.1\", 8, \"10.0.0.0/33\"]",
        &[
            "webhooks.allow_private[0] must be a range of addresses like \"10.1.0.0/16\", not \"127.0.0.1\"",
            "webhooks.allow_private[1] must be",
            "webhooks.allow_private[2] must be",
        ],
    ),
    ("[webhooks]\ntimeout_ms = 99", &["webhooks.timeout_ms must be from 100 to 120000, not 99"]),
    ("[webhooks]\nretention_days = 0", &["webhooks.retention_days must be from 1 to 3650, not 0"]),
    (
        "[[auth.tokens]]",
        &[
            "auth.tokens[0].name is missing",
            "auth.tokens[0].role is missing",
            "auth.tokens[0].secret or auth.tokens[0].secret_file is missing",
        ],
    ),
    (
        "[[auth.tokens]]\nname = \"a\"\nrole = \"admin\"\nsecret = \"1234567\"",
        &["auth.tokens[0].secret must be 8 to 1024 bytes long, not 7"],
    ),
    (
        "[[auth.tokens]]\nname = \"a\"\nrole = \"admin\"\nsecret = \"with a space\"",
        &["auth.tokens[0].secret must be visible ASCII"],
    ),
    (
        "[[auth.tokens]]\nname = \"a\"\nrole = \"service\"\naccount = \"\"\nsecret = \"12345678\"",
        &["auth.tokens[0].account must be 1 to 255 bytes long, not 0"],
    ),
    (
        "[[auth.tokens]]\nname = \"a\"\nrole = \"admin\"\naccount = \"x\"\nsecret = \"12345678\"",
        &["auth.tokens[0].account goes only with role = \"service\""],
    ),
    (
        "[[auth.tokens]]\nname = \"a\"\nrole = \"root\"",
        &["auth.tokens[0].role must be \"admin\" or \"service\" or \"metrics\", not \"root\""],
    ),
    (
        "[[auth.tokens]]\nname = \"a\"\nrol = 1",
        &["auth.tokens[0].rol is not a setting", "did you mean auth.tokens[0].role?"],
    ),
    ("[http]\nlisten = ", &["line 2"]),
    ("[node]\ndata_dir = \"\"", &["node.data_dir is empty"]),
    (
        "cluster.nodes = [{id = 1, http_address = \"::1:4001\", peer_address = \"[::1]:4101\"}]",
        &["cluster.nodes[0].http_address must be host:port, not \"::1:4001\""],
    ),
    ("http.listen = \"[::]:4001\"", &["without tokens a node serves loopback only"]),
    ("http.listen = \"[::ffff:192.0.2.1]:4001\"", &["without tokens a node serves loopback only"]),
];

#[test]
fn what_is_wrong_is_named_with_what_is_allowed() {
    for (file, says) in REFUSED {
        let error = from_file(file).err().unwrap_or_else(|| panic!("{file}: accepted"));
        for part in *says {
            assert!(error.contains(part), "{file}\nshould say: {part}\nsays: {error}");
        }
    }
}

#[test]
fn webhooks_are_dispatched_as_it_is_set_and_by_default_as_the_dispatcher_would() {
    let standard = Settings::default().webhooks.dispatch();
    assert_eq!(format!("{standard:?}"), format!("{:?}", DispatchConfig::default()));
    let file = "[webhooks]\nretry_schedule_ms = [1, 2000]\nallow_private = [\"127.0.0.0/8\"]\nhttps_only = true";
    let set = from_file(file).unwrap().webhooks.dispatch();
    assert_eq!(set.schedule, [Duration::from_millis(1), Duration::from_secs(2)]);
    let ranges = set.guard.allow.iter().map(ToString::to_string);
    assert_eq!((ranges.collect::<Vec<_>>(), set.guard.https_only), (vec!["127.0.0.0/8".to_owned()], true));
}

#[test]
fn all_faults_are_told_at_once() {
    let error = from_file("[http]\nlisen = 1\nmax_headers = 1\n[log]\nlevel = \"loud\"").unwrap_err();
    assert_eq!(error.lines().count(), 3, "{error}");
}

#[test]
fn misspelt_variables_and_overrides_are_refused_and_foreign_ones_are_not() {
    let error = from("", &[("ONCEWARD_HTTP__LISEN", "127.0.0.1:1")], &[]).unwrap_err();
    assert!(error.contains("http.lisen is not a setting; did you mean http.listen?"), "{error}");
    let error = from("", &[("ONCEWARD_HTTP_LISTEN", "127.0.0.1:1")], &[]).unwrap_err();
    assert!(error.contains("did you mean ONCEWARD_HTTP__LISTEN?"), "{error}");
    let error = from("", &[], &[("http", "1")]).unwrap_err();
    assert!(error.contains("http is not a setting"), "{error}");
    let error = from("", &[], &[("node.id", "one\nid = 1")]).unwrap_err();
    assert!(error.contains("node.id must be an integer"), "{error}");
    let raw = std::os::unix::ffi::OsStringExt::from_vec(b"\xff".to_vec());
    let environment = vec![("ONCEWARD_PEERS__SECRET".to_owned(), raw)];
    let error = load(&Sources { environment, ..Sources::default() }).unwrap_err().to_string();
    assert!(error.contains("ONCEWARD_PEERS__SECRET is not UTF-8"), "{error}");
    // As container platforms set them for a service of this name.
    from("", &[("ONCEWARD_PORT_4001_TCP", "tcp://10.0.0.1:4001"), ("ONCEWARD_SERVICE_HOST", "10.0.0.1")], &[]).unwrap();
}

#[test]
fn secrets_are_read_from_files_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let secret_file = dir.path().join("token");
    fs::write(&secret_file, "from-a-file-0123\n").unwrap();
    let file = format!(
        "[peers]\nsecret = \"in-the-config-0123\"\n[[auth.tokens]]\nname = \"a\"\nrole = \"admin\"\nsecret_file = {:?}",
        secret_file.to_str().unwrap()
    );
    let settings = from_file(&file).unwrap();
    assert_eq!(settings.auth.tokens[0].secret.as_ref().unwrap().reveal(), "from-a-file-0123");
    for shown in [effective(&settings), format!("{settings:?}")] {
        assert!(!shown.contains("0123"), "{shown}");
        assert!(shown.contains("(hidden)"), "{shown}");
    }
    // Neither does a refusal repeat what stands where a secret belongs.
    for file in [
        "[peers]\nsecret = 12345678901234567",
        "[[auth.tokens]]\nsecret = [\"12345678901234567\"]",
        "[peers]\nsecret = 12345678901234567 x",
    ] {
        let error = from_file(file).unwrap_err();
        assert!(!error.contains("12345678901234567"), "{error}");
    }
}
