//! Webhooks as the API asks for them: which shard a call goes to, under what identity it may be sent again, and the
//! list of applications, of which every data shard has a part.
//!
//! Nothing is decided here but the way. What changes operational endpoints is brought to every data shard, as changes of
//! policies are.

use std::{cmp::Ordering, sync::Arc};

use futures::future::try_join_all;
use onceward_core::{
    cluster::ShardId,
    command::{Command, Reply},
    idempotency::Key,
    query::{Answer, Query},
    webhooks::{
        Action, AppRef, AppView, Id, Missing, Nonce, Page, PageIn, Refusal, RequestKey, WebhookAnswer, WebhookCommand,
        WebhookQuery, WebhookReply,
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    node::{Surroundings, unexpected},
    operational,
    outcome::{NotApplied, ServiceError},
    router::{Resent, Router},
};

/// Pages and payloads that this node asks for at once: a page takes up to a megabyte, and what a leader has to send to
/// this node in one go must not outgrow the link.
const LARGE_ANSWERS_MAX: usize = 16;
/// Under which calls without an `idempotency-key` are known again. No caller's scope has a control character.
const DRAWN_SCOPE: &str = "\u{1}drawn";

/// A call that changes something, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookCall {
    pub action: Action,
    /// Its `idempotency-key`.
    pub request: Option<RequestKey>,
}

/// A call as it goes to its shard.
pub(crate) struct Prepared {
    pub shard: ShardId,
    pub command: WebhookCommand,
    /// However often it is sent.
    pub lands_once: bool,
}

pub(crate) struct Webhooks {
    router: Arc<Router>,
    surroundings: Arc<Surroundings>,
    /// One permit for each large answer that is under way.
    large_answers: Semaphore,
}

impl Webhooks {
    pub(crate) fn new(router: Arc<Router>, surroundings: Arc<Surroundings>) -> Webhooks {
        Webhooks { router, surroundings, large_answers: Semaphore::new(LARGE_ANSWERS_MAX) }
    }

    pub(crate) async fn call(&self, call: WebhookCall, deadline: Instant) -> Result<WebhookReply, ServiceError> {
        let Some(Prepared { shard, command, lands_once }) = self.prepare(call) else {
            return Ok(WebhookReply::Refused(Refusal::NoApp));
        };
        let keyed = command.request.is_some();
        let operational = command.action.app() == Some(&AppRef::Operational);
        let command = Command::Webhook(Box::new(command));
        let (outcome, resent) = match lands_once {
            true => self.router.submit_until_known(shard, &command, deadline).await,
            false => (self.router.submit(shard, &command, deadline).await, Resent(false)),
        };
        let reply = match outcome.into_result()? {
            Reply::Webhook(reply) => *reply,
            // Not shown: it may have an endpoint's headers.
            _ => return Err(unexpected(&"not a reply of webhooks")),
        };
        if !keyed && resent.0 && reply == WebhookReply::Refused(Refusal::NoApp) {
            // Perhaps it landed, and the application was deleted before it came again.
            return Err(ServiceError::Unknown);
        }
        if operational && !matches!(reply, WebhookReply::Refused(_)) {
            operational::copy_to_all(&self.router, &self.surroundings, deadline).await;
        }
        Ok(reply)
    }

    /// `None`: no shard of this cluster made the application.
    pub(crate) fn prepare(&self, call: WebhookCall) -> Option<Prepared> {
        let WebhookCall { action, request } = call;
        let request = request.or_else(|| self.draw_request(&action));
        let shard = self.shard_of(&action, request.as_ref())?;
        let by_event_id = matches!(&action, Action::Publish(publish) if publish.message.event_id.is_some());
        let lands_once = request.is_some() || by_event_id;
        let wall_ms = self.surroundings.clock.wall_ms();
        let command = WebhookCommand { action, request, nonce: draw_nonce(&self.surroundings), wall_ms };
        Some(Prepared { shard, command, lands_once })
    }

    /// An identity for a call that has none, so that it may be sent again: sent twice, a deletion could meet what was
    /// made anew in between, and an update undo another's. Publishing goes without, as each identity is a row.
    fn draw_request(&self, action: &Action) -> Option<RequestKey> {
        if matches!(action, Action::Publish(_)) {
            return None;
        }
        let drawn = format!("{:032x}", self.surroundings.entropy.nonce());
        let key = Key::parse(&drawn).expect("32 digits are a key");
        Some(RequestKey { scope: DRAWN_SCOPE.to_owned(), key, fingerprint: [0; 32] })
    }

    fn shard_of(&self, action: &Action, request: Option<&RequestKey>) -> Option<ShardId> {
        let manifest = &self.surroundings.manifest;
        match action {
            Action::CreateApp(create) => Some(match &create.uid {
                Some(uid) => manifest.account_shard(uid.as_str()),
                // Where the same call finds it again.
                None => manifest.unnamed_app_shard(request?.key.as_str().as_bytes()),
            }),
            Action::EventType(_) => Some(ShardId::SYSTEM),
            other => manifest.app_shard(other.app()?),
        }
    }

    pub(crate) async fn query(&self, query: WebhookQuery, deadline: Instant) -> Result<WebhookAnswer, ServiceError> {
        if let WebhookQuery::Apps { page } = query {
            return Ok(WebhookAnswer::Apps(self.apps(page, deadline).await?));
        }
        let shard = match query.app() {
            Some(app) => self.surroundings.manifest.app_shard(app),
            None => Some(ShardId::SYSTEM),
        };
        match shard {
            Some(shard) => self.ask(shard, query, deadline).await,
            None => Ok(WebhookAnswer::NotFound(Missing::App)),
        }
    }

    async fn ask(&self, shard: ShardId, query: WebhookQuery, deadline: Instant) -> Result<WebhookAnswer, ServiceError> {
        let _permit = match is_large(&query) {
            true => match timeout_at(deadline, self.large_answers.acquire()).await {
                Ok(permit) => permit.ok(),
                Err(_) => return Err(NotApplied::Overloaded.into()),
            },
            false => None,
        };
        match self.router.query(shard, Query::Webhook(query), deadline).await.into_result()? {
            Answer::Webhook(answer) => Ok(answer),
            // Not shown: it may have an endpoint's headers.
            _ => Err(unexpected(&"not an answer of webhooks")),
        }
    }

    /// A page of all applications, by age. Where one shard cannot be asked there is none: it would have a hole.
    pub(crate) async fn apps(&self, page: PageIn, deadline: Instant) -> Result<Page<AppView>, ServiceError> {
        let shards = self.surroundings.manifest.shards().filter(|shard| !shard.is_system());
        let pages = shards.map(|shard| async move {
            match self.ask(shard, WebhookQuery::Apps { page }, deadline).await? {
                WebhookAnswer::Apps(apps) => Ok(apps),
                _ => Err(unexpected(&"something else than a list of applications")),
            }
        });
        Ok(merge(try_join_all(pages).await?, page, |app| app.id.0))
    }
}

/// For the ids that a command makes.
pub(crate) fn draw_nonce(surroundings: &Surroundings) -> Nonce {
    let [a, b, c, d, e, f, ..] = surroundings.entropy.nonce().to_le_bytes();
    [a, b, c, d, e, f]
}

/// Whether the answer may take more than some tens of kilobytes.
fn is_large(query: &WebhookQuery) -> bool {
    match query {
        WebhookQuery::Message { with_payload, .. } => *with_payload,
        WebhookQuery::Apps { .. }
        | WebhookQuery::Endpoints { .. }
        | WebhookQuery::Messages { .. }
        | WebhookQuery::AttemptsOfMessage { .. }
        | WebhookQuery::AttemptsOfEndpoint { .. }
        | WebhookQuery::Deliveries { .. }
        | WebhookQuery::EventTypes { .. }
        | WebhookQuery::Operational => true,
        WebhookQuery::App { .. }
        | WebhookQuery::Endpoint { .. }
        | WebhookQuery::Secret { .. }
        | WebhookQuery::Headers { .. }
        | WebhookQuery::Attempt { .. }
        | WebhookQuery::EventType { .. }
        | WebhookQuery::OperationalRevision => false,
    }
}

/// One page from a page of each shard. Where a shard's page ends and isn't its last, the merged one ends, too: what
/// others have behind that may come after what was not read.
fn merge<T>(pages: Vec<Page<T>>, asked: PageIn, id: impl Fn(&T) -> Id) -> Page<T> {
    // The order in which the pages were read, which is the list's own only when it is read forwards.
    let falling = asked.descending != asked.backwards;
    let order = |one: &Id, other: &Id| if falling { other.cmp(one) } else { one.cmp(other) };
    let last_of = |items: &[T]| if asked.backwards { items.first().map(&id) } else { items.last().map(&id) };
    let ends = pages.iter().filter(|page| !page.done).filter_map(|page| page.cursor.or_else(|| last_of(&page.items)));
    let end = ends.min_by(order);
    let mut items: Vec<T> = pages.into_iter().flat_map(|page| page.items).collect();
    items.retain(|item| end.as_ref().is_none_or(|end| order(&id(item), end) != Ordering::Greater));
    items.sort_by(|one, other| order(&id(one), &id(other)));
    let cut = items.len() > asked.limit as usize;
    items.truncate(asked.limit as usize);
    let reached = items.last().map(&id);
    if asked.backwards {
        items.reverse();
    }
    Page { items, done: end.is_none() && !cut, cursor: end.filter(|end| !cut && reached != Some(*end)) }
}

#[cfg(test)]
mod tests {
    use onceward_core::webhooks::AppId;

    use super::*;

    const LIMIT: usize = 5;

    /// Ids of several shards, that are made at about the same time: the last character tells them apart.
    fn ids(texts: &[String]) -> Vec<Id> {
        texts.iter().map(|text| AppId::parse(text).unwrap().0).collect()
    }

    /// What a shard with these ids answers; no page of it has more than `short`.
    fn page_of(shard: &[Id], asked: PageIn, short: usize) -> Page<Id> {
        let falling = asked.descending != asked.backwards;
        let mut all = shard.to_vec();
        all.sort();
        if falling {
            all.reverse();
        }
        all.retain(|id| asked.cursor.is_none_or(|cursor| if falling { *id < cursor } else { *id > cursor }));
        let count = short.min(asked.limit as usize);
        let done = all.len() <= count;
        all.truncate(count);
        if asked.backwards {
            all.reverse();
        }
        Page { items: all, done, cursor: None }
    }

    #[test]
    fn an_iterator_over_all_shards_meets_everything_once_in_order_also_backwards_and_where_pages_come_short() {
        let names: Vec<_> = (0..40).map(|n| format!("app_{:027}", n * 7 % 1_000)).collect();
        let all = ids(&names);
        let shards: Vec<Vec<Id>> = (0..3)
            .map(|shard| all.iter().enumerate().filter(|(n, _)| n * n % 7 % 3 == shard).map(|(_, id)| *id).collect())
            .collect();
        for (descending, short) in [(false, 9), (true, 9), (false, 2), (true, 2)] {
            let mut expected = all.clone();
            expected.sort();
            if descending {
                expected.reverse();
            }
            let mut asked = PageIn { cursor: None, backwards: false, descending, limit: LIMIT as u32 };
            let read =
                |asked| merge(shards.iter().map(|shard| page_of(shard, asked, short)).collect(), asked, |id| *id);
            let mut seen = Vec::new();
            loop {
                let page = read(asked);
                assert!(page.items.len() <= LIMIT && (page.done || !page.items.is_empty()));
                seen.extend(page.items);
                if page.done {
                    break;
                }
                asked.cursor = page.cursor.or(seen.last().copied());
            }
            assert_eq!(seen, expected);

            asked.backwards = true;
            asked.cursor = seen.last().copied();
            let mut back = Vec::new();
            loop {
                let page = read(asked);
                back.splice(0..0, page.items);
                if page.done {
                    break;
                }
                asked.cursor = page.cursor.or(back.first().copied());
            }
            assert_eq!(back, expected[..expected.len() - 1]);
        }
    }
}
