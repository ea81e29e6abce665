//! Where settings come from: the file, over it the environment, over that the command line.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use super::{
    Settings, SettingsError,
    check::check,
    schema::{Fault, Notation, Setting, nearest},
};

/// Environment variables with this prefix are settings: `ONCEWARD_HTTP__LISTEN` is `http.listen`.
const ENV_PREFIX: &str = "ONCEWARD_";
/// Separates the section from the name, as names have single underscores of their own.
const ENV_SEPARATOR: &str = "__";

/// One `key=value` from the command line. Not to be printed: it may be a secret.
#[derive(Clone)]
pub struct Override {
    pub name: String,
    pub value: String,
}

/// Everything that settings are made from; kept, so that SIGHUP can read them again. Not to be printed: there are
/// secrets in it.
#[derive(Clone, Default)]
pub struct Sources {
    pub file: Option<PathBuf>,
    pub environment: Vec<(String, OsString)>,
    pub overrides: Vec<Override>,
}

impl Sources {
    /// With the environment of this process; variables whose names are not UTF-8 are no settings.
    pub fn of_process(file: Option<PathBuf>, overrides: Vec<Override>) -> Sources {
        let environment =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        Sources { file, environment, overrides }
    }
}

/// Reads and checks the settings.
pub fn load(sources: &Sources) -> Result<Settings, SettingsError> {
    let mut faults = Vec::new();
    let mut tree = match &sources.file {
        Some(path) => read_file(path)?,
        None => Table::new(),
    };
    let declared = Settings::declared();
    for (name, value) in &sources.environment {
        let Some(path) = setting_of_variable(name, &mut faults) else { continue };
        match value.to_str() {
            Some(value) => place(&mut tree, &path, value, &declared, &mut faults),
            None => faults.push(Fault(format!("{name} is not UTF-8"))),
        }
    }
    for Override { name, value } in &sources.overrides {
        place(&mut tree, name, value, &declared, &mut faults);
    }
    let settings = Settings::read(Value::Table(tree), "", &mut faults);
    match settings {
        Some(mut settings) => {
            // Rules between settings make sense only once each has a value of its own.
            if faults.is_empty() {
                check(&mut settings, &mut faults);
            }
            if faults.is_empty() { Ok(settings) } else { Err(SettingsError::Faults(faults)) }
        }
        None => Err(SettingsError::Faults(faults)),
    }
}

/// The settings as a file would state them, secrets hidden.
pub fn effective(settings: &Settings) -> String {
    match settings.show() {
        Some(Value::Table(table)) => toml::to_string(&table).expect("a table of tables and values is TOML"),
        _ => unreachable!("the settings are a table"),
    }
}

fn read_file(path: &Path) -> Result<Table, SettingsError> {
    let file = |detail: String| SettingsError::File { path: path.to_owned(), detail };
    let text = fs::read_to_string(path).map_err(|error| file(error.to_string()))?;
    // Of the parser's message only what and where: the line it quotes may hold a secret.
    text.parse::<Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        file(format!("line {line}: {}", error.message()))
    })
}

/// `http.listen` for `ONCEWARD_HTTP__LISTEN`. A variable without the separator isn't a setting (container platforms
/// set such ones by themselves), unless it is a setting's name but for the separator.
fn setting_of_variable(name: &str, faults: &mut Vec<Fault>) -> Option<String> {
    let rest = name.strip_prefix(ENV_PREFIX)?;
    if rest.contains(ENV_SEPARATOR) {
        return Some(rest.to_lowercase().replace(ENV_SEPARATOR, "."));
    }
    let flat = rest.to_lowercase();
    let meant = Settings::declared().into_iter().find(|declared| declared.name.replace('.', "_") == flat)?;
    let variable = meant.name.to_uppercase().replace('.', ENV_SEPARATOR);
    faults.push(Fault(format!("{name} is not a setting; did you mean {ENV_PREFIX}{variable}?")));
    None
}

/// Puts a value given as text where its dotted name says.
fn place(tree: &mut Table, path: &str, text: &str, declared: &[super::Declared], faults: &mut Vec<Fault>) {
    let Some(setting) = declared.iter().find(|declared| declared.name == path) else {
        let names: Vec<&str> = declared.iter().map(|declared| declared.name.as_str()).collect();
        let hint = nearest(path, &names).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        faults.push(Fault(format!("{path} is not a setting{hint}")));
        return;
    };
    let value = match setting.notation {
        Notation::Text => Value::String(text.to_owned()),
        // What is no TOML stays text, and is then refused by the setting's own type, in its own words.
        Notation::Toml => parse_value(text).unwrap_or_else(|| Value::String(text.to_owned())),
    };
    let (sections, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut table = tree;
    for section in sections.split('.') {
        let entry = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        match entry {
            Value::Table(inner) => table = inner,
            // The file has something else where this section belongs, which reading will refuse by name; a setting
            // inside an array of tables has no place of its own.
            _ => {
                faults.push(Fault(format!("{path} cannot be set alone; set {section} as a whole")));
                return;
            }
        }
    }
    table.insert(name.to_owned(), value);
}

fn parse_value(text: &str) -> Option<Value> {
    let mut table = format!("value = {text}").parse::<Table>().ok()?;
    // More than one key: the text had a line break and went on.
    if table.len() == 1 { table.remove("value") } else { None }
}
