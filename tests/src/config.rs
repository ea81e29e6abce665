//! The config file of a test node: what every node needs, and whatever a test sets beyond it.

use std::{fs, net::SocketAddr, path::Path};

use toml::{Table, Value};

/// What the nodes of a test prove to each other that they know.
pub const SECRET: &str = "a secret of the test kit, long enough";

/// The token that nodes ask for which listen on other addresses than loopback.
pub const TOKEN: &str = "a-token-of-the-test-kit";

#[derive(Debug, Clone)]
pub struct NodeAddress {
    pub id: u16,
    pub http: SocketAddr,
    pub peer: SocketAddr,
}

/// What a node's config file says.
pub struct Settings(Table);

impl Settings {
    /// `all` as this node is to reach them, which need not be where they listen; its own address is what it announces.
    pub fn new(own: &NodeAddress, all: &[NodeAddress], data_dir: &Path, data_shards: u16) -> Settings {
        let mut settings = Settings(Table::new());
        let mut set = |name: &str, value: Value| settings.set(name, value);
        set("node.id", i64::from(own.id).into());
        set("node.data_dir", data_dir.to_str().expect("temporary directories have plain names").into());
        set("http.listen", own.http.to_string().into());
        set("peers.listen", own.peer.to_string().into());
        set("peers.secret", SECRET.into());
        set("cluster.data_shards", i64::from(data_shards).into());
        set("cluster.nodes", Value::Array(all.iter().map(address).collect()));
        if !own.http.ip().is_loopback() {
            set("auth.tokens", Value::Array(vec![token()]));
        }
        settings
    }

    /// Sets `section.sub.name`; sections that are not there yet are made.
    pub fn set(&mut self, name: &str, value: Value) {
        let (sections, last) = name.rsplit_once('.').map_or((None, name), |(sections, last)| (Some(sections), last));
        let mut table = &mut self.0;
        for section in sections.into_iter().flat_map(|sections| sections.split('.')) {
            table = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()))
                .as_table_mut()
                .unwrap_or_else(|| panic!("{section} of {name} is not a section"));
        }
        table.insert(last.to_owned(), value);
    }

    pub fn write(&self, file: &Path) {
        fs::write(file, self.0.to_string()).expect("the config file can be written");
    }
}

fn address(node: &NodeAddress) -> Value {
    let mut table = Table::new();
    table.insert("id".to_owned(), i64::from(node.id).into());
    table.insert("http_address".to_owned(), node.http.to_string().into());
    table.insert("peer_address".to_owned(), node.peer.to_string().into());
    table.into()
}

fn token() -> Value {
    let fields = [("name", "test kit"), ("secret", TOKEN), ("role", "admin")];
    Value::Table(fields.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect())
}
