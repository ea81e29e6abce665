//! Reads the file that pins the wire format, for tests.

/// Asserts that these are the bytes that the file gives for `name`.
pub(crate) fn assert_wire(name: &str, bytes: &[u8]) {
    let golden = include_str!("../tests/golden/wire.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .find(|(named, _)| *named == name)
        .map(|(_, hex)| hex.trim());
    let actual: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Some(actual.as_str()), golden, "{name}");
}
