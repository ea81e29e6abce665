//! Lists, page by page: the parameters of their queries, and the envelope of their answers.
//!
//! An iterator is the id of a page's last item, or `-` and that of its first, to go back. It says where to go on and
//! nothing else, so that it stays good whatever is added or removed.

use std::collections::{BTreeMap, btree_map::Entry};

use axum::{
    extract::{FromRequestParts, Query},
    http::request::Parts,
};
use onceward_core::webhooks::{
    Id, LabelError, MessageFilter, Name, Page, PageIn,
    bounds::{FILTER_MAX, PAGE_DEFAULT, PAGE_MAX},
    check_channel, check_tag,
};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::ToSchema;

use crate::api::{
    App,
    json::{DUPLICATE, Judge, shown},
    problem::{Place, Problem},
};

/// The parameters of a query. Those that nobody asks for are read over.
pub struct Parameters {
    single: BTreeMap<String, String>,
    /// `event_types`, which may come as a list with commas, or several times.
    event_types: Vec<String>,
    pub judge: Judge,
}

impl FromRequestParts<App> for Parameters {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Parameters, Problem> {
        let query = Query::<Vec<(String, String)>>::from_request_parts(parts, app).await;
        let Query(given) = query.map_err(|_| Problem::invalid("the query cannot be read"))?;
        let mut judge = Judge::of(Place::Query);
        let (mut single, mut event_types) = (BTreeMap::new(), Vec::new());
        for (name, value) in given {
            if name == "event_types" || (name.starts_with("event_types[") && name.ends_with(']')) {
                event_types.extend(value.split(',').map(str::to_owned));
                continue;
            }
            match single.entry(name) {
                Entry::Vacant(vacant) => {
                    vacant.insert(value);
                }
                Entry::Occupied(first) => judge.refuse(shown(first.key()), DUPLICATE),
            }
        }
        Ok(Parameters { single, event_types, judge })
    }
}

impl Parameters {
    /// The value of a parameter, as it came in; an empty one counts as none.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.single.remove(name).filter(|value| !value.is_empty())
    }

    /// A parameter that is of `T`; `allowed` completes "must be …".
    pub fn parsed<T>(&mut self, name: &str, allowed: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = self.take(name)?;
        let parsed = parse(&value);
        if parsed.is_none() {
            self.judge.refuse(name, format!("must be {allowed}, not {:?}", shown(&value)));
        }
        parsed
    }

    pub fn flag(&mut self, name: &str, default: bool) -> bool {
        let flag = self.parsed(name, "true or false", |value| match value {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        });
        flag.unwrap_or(default)
    }

    pub fn limit(&mut self) -> u32 {
        const _: () = assert!(PAGE_MAX == 250);
        let allowed = "a whole number from 1 to 250";
        self.parsed("limit", allowed, |value| number(value).filter(|limit| (1..=PAGE_MAX).contains(limit)))
            .unwrap_or(PAGE_DEFAULT)
    }

    pub fn descending(&mut self, default: bool) -> bool {
        let order = self.parsed("order", "\"ascending\" or \"descending\"", |value| match value {
            "ascending" => Some(false),
            "descending" => Some(true),
            _ => None,
        });
        order.unwrap_or(default)
    }

    /// `iterator`: where to go on, and whether backwards.
    pub fn iterator<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> (Option<T>, bool) {
        let allowed = "what an earlier page of this list gave as its iterator or prevIterator";
        let read = self.parsed("iterator", allowed, |value| match value.strip_prefix('-') {
            Some(first) => parse(first).map(|cursor| (Some(cursor), true)),
            None => parse(value).map(|cursor| (Some(cursor), false)),
        });
        read.unwrap_or((None, false))
    }

    /// Which page of a list whose items have ids.
    pub fn page(&mut self, descending: bool, parse: impl FnOnce(&str) -> Option<Id>) -> PageIn {
        let (cursor, backwards) = self.iterator(parse);
        PageIn { cursor, backwards, descending, limit: self.limit() }
    }

    /// Which messages, or attempts of messages.
    pub fn messages(&mut self) -> MessageFilter {
        MessageFilter {
            event_types: self.event_types(),
            channel: self.label("channel", check_channel),
            tag: self.label("tag", check_tag),
            before_wall_ms: self.instant("before"),
            after_wall_ms: self.instant("after"),
        }
    }

    fn event_types(&mut self) -> Option<Vec<Name>> {
        let given = std::mem::take(&mut self.event_types);
        if given.is_empty() {
            return None;
        }
        if given.len() > FILTER_MAX {
            self.judge.refuse("event_types", format!("must be at most {FILTER_MAX}, not {}", given.len()));
        }
        let mut names = Vec::new();
        for text in given.iter().take(FILTER_MAX) {
            match Name::parse(text) {
                Ok(name) => names.push(name),
                Err(error) => self.judge.refuse("event_types", error.to_string()),
            }
        }
        Some(names)
    }

    fn label(&mut self, name: &str, check: impl Fn(&str) -> Result<(), LabelError>) -> Option<String> {
        let text = self.take(name)?;
        check(&text).map_err(|error| self.judge.refuse(name, error.to_string())).ok()?;
        Some(text)
    }

    fn instant(&mut self, name: &str) -> Option<u64> {
        self.parsed(name, "an instant like 2026-01-02T03:04:05Z", |value| {
            let at = OffsetDateTime::parse(value, &Rfc3339).ok()?;
            // What lies before 1970 is before everything.
            Some(u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(0))
        })
    }

    /// `read` when nothing is wrong with any of the parameters.
    pub fn verdict<T>(self, read: T) -> Result<T, Problem> {
        self.judge.verdict(Some(read))
    }
}

/// Digits alone: `parse` would take a sign, too.
pub fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A page of a list.
#[derive(Serialize, ToSchema)]
#[schema(as = ListResponse)]
#[serde(rename_all = "camelCase")]
pub struct ListBody<T> {
    /// May be fewer than `limit`, or none, though the list goes on.
    pub data: Vec<T>,
    /// For the page behind this one.
    pub iterator: Option<String>,
    /// For the page before this one.
    pub prev_iterator: Option<String>,
    /// Nothing is behind this page, in the direction that was asked for.
    pub done: bool,
}

impl<T> ListBody<T> {
    /// The envelope around a page. `prefix` is that of the items' ids, of which `id` gives each.
    pub fn new<V>(
        page: Page<V>,
        asked: &PageIn,
        text: impl Fn(Id) -> String,
        id: impl Fn(&V) -> Id,
        body: impl FnMut(V) -> T,
    ) -> ListBody<T> {
        let (first, last) = (page.items.first().map(&id), page.items.last().map(&id));
        // Where rows were looked at beyond the items, the next page begins behind those.
        let (first, last) = match asked.backwards {
            true => (page.cursor.or(first), last),
            false => (first, page.cursor.or(last)),
        };
        ListBody {
            data: page.items.into_iter().map(body).collect(),
            iterator: last.map(&text),
            prev_iterator: first.map(|id| format!("-{}", text(id))),
            done: page.done,
        }
    }
}
