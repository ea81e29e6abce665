//! Reads EDN as Clojure's reader does, as much of it as histories use.

use std::iter::Peekable;
use std::str::Chars;

#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    Nil,
    Bool(bool),
    Integer(i128),
    String(String),
    Keyword(String),
    Vector(Vec<Form>),
    Map(Vec<(Form, Form)>),
}

impl Form {
    /// The value under a keyword of a map.
    pub fn get(&self, keyword: &str) -> Option<&Form> {
        let Form::Map(fields) = self else { return None };
        let name = Form::Keyword(keyword.to_owned());
        fields.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub fn keyword(&self, name: &str) -> &str {
        match self.get(name) {
            Some(Form::Keyword(word)) => word,
            other => panic!("{name} is {other:?}"),
        }
    }

    pub fn integer(&self, name: &str) -> i128 {
        match self.get(name) {
            Some(Form::Integer(number)) => *number,
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// All forms of a text.
pub fn read(text: &str) -> Vec<Form> {
    let mut chars = text.chars().peekable();
    let mut forms = Vec::new();
    while skip_blanks(&mut chars) {
        forms.push(form(&mut chars));
    }
    forms
}

/// Whether something follows. Commas are blanks.
fn skip_blanks(chars: &mut Peekable<Chars>) -> bool {
    while chars.next_if(|c| c.is_whitespace() || *c == ',').is_some() {}
    chars.peek().is_some()
}

fn form(chars: &mut Peekable<Chars>) -> Form {
    match chars.peek().expect("a form begins here") {
        '"' => string(chars),
        '[' => Form::Vector(until(chars, ']')),
        '{' => map(until(chars, '}')),
        _ => atom(chars),
    }
}

fn until(chars: &mut Peekable<Chars>, end: char) -> Vec<Form> {
    chars.next();
    let mut forms = Vec::new();
    loop {
        assert!(skip_blanks(chars), "{end} is missing");
        if chars.next_if_eq(&end).is_some() {
            return forms;
        }
        forms.push(form(chars));
    }
}

fn map(forms: Vec<Form>) -> Form {
    assert!(forms.len().is_multiple_of(2), "a map has a value for each key");
    let fields: Vec<(Form, Form)> = forms.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    for (i, (key, _)) in fields.iter().enumerate() {
        assert!(fields[..i].iter().all(|(other, _)| other != key), "the key {key:?} comes twice");
    }
    Form::Map(fields)
}

fn string(chars: &mut Peekable<Chars>) -> Form {
    chars.next();
    let mut text = String::new();
    loop {
        match chars.next().expect("a string ends") {
            '"' => return Form::String(text),
            '\\' => text.push(escaped(chars)),
            c => text.push(c),
        }
    }
}

fn escaped(chars: &mut Peekable<Chars>) -> char {
    match chars.next() {
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some(c @ ('"' | '\\')) => c,
        Some('u') => {
            let digits: String = chars.take(4).collect();
            u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32).expect("four digits are a character")
        }
        other => panic!("no escape: {other:?}"),
    }
}

fn atom(chars: &mut Peekable<Chars>) -> Form {
    let mut word = String::new();
    while let Some(c) = chars.next_if(|c| !c.is_whitespace() && !",]}\"".contains(*c)) {
        word.push(c);
    }
    match word.as_str() {
        "nil" => Form::Nil,
        "true" => Form::Bool(true),
        "false" => Form::Bool(false),
        word => match word.strip_prefix(':') {
            Some(name) if name.starts_with(|c: char| c.is_ascii_alphabetic()) => Form::Keyword(name.to_owned()),
            _ => Form::Integer(word.trim_end_matches('N').parse().unwrap_or_else(|_| panic!("no form: {word:?}"))),
        },
    }
}
