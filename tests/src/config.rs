//! The config file of a test node: what every node needs, and whatever a test sets beyond it.

use std::{fs, path::Path};

use toml::{Table, Value};

/// What the nodes of a test prove to each other that they know.
pub const SECRET: &str = "a secret of the test kit, long enough";

pub struct NodeAddress {
    pub id: u16,
    pub http_port: u16,
    pub peer_port: u16,
}

/// What a node's config file says.
pub struct Settings(Table);

impl Settings {
    pub fn new(own: &NodeAddress, all: &[NodeAddress], data_dir: &Path, data_shards: u16) -> Settings {
        let mut settings = Settings(Table::new());
        let mut set = |name: &str, value: Value| settings.set(name, value);
        set("node.id", i64::from(own.id).into());
        set("node.data_dir", data_dir.to_str().expect("temporary directories have plain names").into());
        set("http.listen", loopback(own.http_port));
        set("peers.listen", loopback(own.peer_port));
        set("peers.secret", SECRET.into());
        set("cluster.data_shards", i64::from(data_shards).into());
        set("cluster.nodes", Value::Array(all.iter().map(address).collect()));
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

fn loopback(port: u16) -> Value {
    format!("127.0.0.1:{port}").into()
}

fn address(node: &NodeAddress) -> Value {
    let mut table = Table::new();
    table.insert("id".to_owned(), i64::from(node.id).into());
    table.insert("http_address".to_owned(), loopback(node.http_port));
    table.insert("peer_address".to_owned(), loopback(node.peer_port));
    table.into()
}
