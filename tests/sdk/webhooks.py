"""The official `svix` package against a cluster, and the official `standardwebhooks` package on what arrives.

webhooks.py URL [URL ...]: the nodes. Only the server's URL is set; everything else is as the packages have it. Each call
goes through another node than the one before. Ends with status 0 when all is as Svix's API says, else with a traceback.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle

from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from svix.api import (
    ApplicationIn,
    ApplicationListOptions,
    ApplicationPatch,
    EndpointHeadersIn,
    EndpointIn,
    EndpointPatch,
    EndpointSecretRotateIn,
    EndpointUpsertIn,
    EventTypeIn,
    EventTypeListOptions,
    MessageAttemptListByMsgOptions,
    MessageCreateOptions,
    MessageIn,
    MessageListOptions,
    OperationalWebhookEndpointIn,
    Svix,
    SvixOptions,
)
from svix.exceptions import HTTPValidationError, HttpError

ARRIVES_MAX_S = 20


class Deliveries:
    """A receiver on loopback: what came, by path. A path that begins with /fail is answered 500."""

    def __init__(self):
        self.came = {}
        self.changed = threading.Condition()
        deliveries = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with deliveries.changed:
                    deliveries.came.setdefault(self.path, []).append((dict(self.headers), body))
                    deliveries.changed.notify_all()
                answer = b'{"received": true}'
                self.send_response(500 if self.path.startswith("/fail") else 200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server.server_address[1]}{path}"

    def wait(self, path, count):
        with self.changed:
            arrived = self.changed.wait_for(lambda: len(self.came.get(path, [])) >= count, ARRIVES_MAX_S)
            assert arrived, f"{count} deliveries to {path}: {self.came}"
            return self.came[path]


def refused(status, call):
    """The error of a call that must be refused."""
    try:
        call()
    except (HttpError, HTTPValidationError) as error:
        assert error.status_code == status, (status, error.status_code, error)
        return error
    raise AssertionError(f"not refused with {status}")


def verifies(secret, delivery):
    headers, body = delivery
    try:
        return Webhook(secret).verify(body, headers) == json.loads(body)
    except WebhookVerificationError:
        return False


def applications(node, run):
    uid = f"sdk-{run}"
    app = node().application.create(ApplicationIn(name="Acme", uid=uid, metadata={"plan": "gold"}))
    assert app.id.startswith("app_") and (app.uid, app.name, app.metadata) == (uid, "Acme", {"plan": "gold"}), app
    again = node().application.get_or_create(ApplicationIn(name="Another", uid=uid))
    assert again == app, (again, app)
    assert refused(409, lambda: node().application.create(ApplicationIn(name="Acme", uid=uid))).code
    assert node().application.get(app.id) == node().application.get(uid) == app
    patched = node().application.patch(uid, ApplicationPatch(name="Acme Inc."))
    assert (patched.name, patched.metadata) == ("Acme Inc.", {"plan": "gold"}), patched
    updated = node().application.upsert(app.id, ApplicationIn(name="Acme", uid=uid, throttle_rate=500))
    assert (updated.name, updated.throttle_rate, updated.uid) == ("Acme", 500, uid), updated
    refused(422, lambda: node().application.patch(uid, ApplicationPatch(uid=f"{uid}-b")))
    assert refused(404, lambda: node().application.get(f"nobody-{run}")).code == "not_found"
    error = refused(422, lambda: node().application.create(ApplicationIn(name="x", uid="not a uid")))
    assert any("uid" in item.loc for item in error.detail), error
    unnamed = node().application.create(ApplicationIn(name="without uid"))
    assert unnamed.uid is None and node().application.get(unnamed.id) == unnamed
    node().application.delete(unnamed.id)
    refused(404, lambda: node().application.get(unnamed.id))
    return app


def pages(node, run):
    """An iterator goes through all of a list that is spread over shards, in both directions."""
    made = {node().application.create(ApplicationIn(name=f"{n}", uid=f"page-{run}-{n}")).id for n in range(12)}
    for order in ("ascending", "descending"):
        seen, iterator = [], None
        while True:
            page = node().application.list(ApplicationListOptions(limit=5, iterator=iterator, order=order))
            seen += [app.id for app in page.data]
            assert len(page.data) == 5 or page.done, page
            if page.done:
                break
            iterator = page.iterator
        assert len(seen) == len(set(seen)) and made <= set(seen), (made, seen)
        assert seen == sorted(seen, reverse=order == "descending"), seen
    first = node().application.list(ApplicationListOptions(limit=5))
    second = node().application.list(ApplicationListOptions(limit=5, iterator=first.iterator))
    back = node().application.list(ApplicationListOptions(limit=5, iterator=second.prev_iterator))
    assert [app.id for app in back.data] == [app.id for app in first.data], (back, first)


def event_types(node, run):
    name = f"invoice.paid-{run}"
    made = node().event_type.create(EventTypeIn(name=name, description="An invoice is paid"))
    assert (made.name, made.description) == (name, "An invoice is paid"), made
    assert refused(409, lambda: node().event_type.create(EventTypeIn(name=name, description="again"))).code
    assert node().event_type.get(name).description == "An invoice is paid"
    names = [item.name for item in node().event_type.list(EventTypeListOptions(limit=250)).data]
    assert name in names, names
    node().event_type.delete(name)


def messages(node, run, app, came):
    uid = app.uid
    endpoint = node().endpoint.create(
        uid, EndpointIn(url=came.url("/all"), uid=f"ep-{run}", description="all", headers={"x-tenant": "acme"})
    )
    filtered = node().endpoint.create(app.id, EndpointIn(url=came.url("/paid"), event_types=["invoice.paid"]))
    assert endpoint.id.startswith("ep_") and endpoint.uid == f"ep-{run}", endpoint
    assert filtered.event_types == ["invoice.paid"], filtered
    assert {item.id for item in node().endpoint.list(uid).data} == {endpoint.id, filtered.id}
    secret = node().endpoint.get_secret(uid, endpoint.uid).key
    assert secret.startswith("whsec_"), secret

    payload = {"amount": 4200, "to": "Zoë", "nested": {"list": [1, 2.5, None]}}
    content = MessageCreateOptions(with_content=True)
    paid = MessageIn(event_type="invoice.paid", event_id=f"e1-{run}", payload=payload)
    sent = node().message.create(uid, paid, content)
    assert sent.id.startswith("msg_") and sent.payload == payload, sent
    again = node().message.create(uid, paid)
    assert again.id == sent.id and again.payload == {}, (again, sent)
    other = MessageIn(event_type="invoice.paid", event_id=f"e1-{run}", payload={"amount": 1})
    refused(409, lambda: node().message.create(uid, other))
    key = MessageCreateOptions(idempotency_key=f"k-{run}")
    cancelled = [
        node().message.create(uid, MessageIn(event_type="invoice.cancelled", payload={"n": 1}), key) for _ in range(3)
    ]
    assert len({message.id for message in cancelled}) == 1, cancelled
    refused(422, lambda: node().message.create(uid, MessageIn(event_type="invoice.paid", payload={"n": 2}), key))
    assert node().message.get(uid, f"e1-{run}").id == sent.id
    listed = node().message.list(uid, MessageListOptions(event_types=["invoice.paid"]))
    assert [message.id for message in listed.data] == [sent.id], listed

    arrived = came.wait("/all", 2)
    assert {headers["webhook-id"] for headers, _ in arrived} == {sent.id, cancelled[0].id}, arrived
    assert sorted(headers["onceward-sequence"] for headers, _ in arrived) == ["1", "2"], arrived
    assert all(headers["x-tenant"] == "acme" for headers, _ in arrived), arrived
    assert all(verifies(secret, delivery) for delivery in arrived), arrived
    (only,) = came.wait("/paid", 1)
    assert verifies(node().endpoint.get_secret(uid, filtered.id).key, only) and not verifies(secret, only), only
    return endpoint, sent, secret


def attempts(node, app, endpoint, sent):
    deadline = time.monotonic() + ARRIVES_MAX_S
    while True:
        options = MessageAttemptListByMsgOptions(endpoint_id=endpoint.id, with_content=True)
        listed = node().message_attempt.list_by_msg(app.uid, sent.id, options)
        if listed.data or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    (attempt,) = listed.data
    assert attempt.id.startswith("atmpt_") and attempt.status == 0 and attempt.response_status_code == 200, attempt
    assert attempt.response == '{"received": true}' and attempt.endpoint_id == endpoint.id, attempt
    assert node().message_attempt.get(app.id, sent.id, attempt.id).id == attempt.id
    by_endpoint = node().message_attempt.list_by_endpoint(app.uid, endpoint.uid).data
    assert attempt.id in [item.id for item in by_endpoint], by_endpoint
    destinations = node().message_attempt.list_attempted_destinations(app.uid, sent.id).data
    assert {item.id: item.status for item in destinations}[endpoint.id] == 0, destinations


def secrets(node, run, app, endpoint, old, came):
    """During the grace time deliveries carry a signature for both secrets; without one the old one is gone at once."""
    rotated = node().endpoint.rotate_secret(app.uid, endpoint.id, EndpointSecretRotateIn(grace_period_seconds=3600))
    new = node().endpoint.get_secret(app.uid, endpoint.id).key
    assert rotated.key == new != old
    node().message.create(app.uid, MessageIn(event_type="a", payload={"n": 3}))
    delivery = came.wait("/all", 3)[2]
    assert verifies(old, delivery) and verifies(new, delivery), delivery

    node().endpoint.rotate_secret(app.uid, endpoint.id, EndpointSecretRotateIn(grace_period_seconds=0))
    newest = node().endpoint.get_secret(app.uid, endpoint.id).key
    node().message.create(app.uid, MessageIn(event_type="a", payload={"n": 4}))
    delivery = came.wait("/all", 4)[3]
    assert verifies(newest, delivery) and not verifies(new, delivery), delivery


def endpoint_changes(node, app, endpoint, came):
    node().endpoint.set_headers(app.uid, endpoint.id, EndpointHeadersIn(headers={"x-other": "1"}))
    assert node().endpoint.get_headers(app.uid, endpoint.id).headers == {"x-other": "1"}
    patched = node().endpoint.patch(app.uid, endpoint.id, EndpointPatch(disabled=True))
    assert patched.disabled is True, patched
    sent = node().message.create(app.uid, MessageIn(event_type="a", payload={"n": 5}))
    updated = node().endpoint.upsert(app.uid, endpoint.id, EndpointUpsertIn(url=came.url("/moved"), disabled=False))
    assert updated.url == came.url("/moved") and updated.disabled is False, updated
    node().message.create(app.uid, MessageIn(event_type="a", payload={"n": 6}))
    ((headers, _),) = came.wait("/moved", 1)
    assert headers["onceward-sequence"] == "6", "what came while it was disabled has its number"
    assert "x-other" in headers and headers["webhook-id"] != sent.id, headers
    for url in ("ftp://example.com/", "http://10.0.0.1/", "nonsense"):
        error = refused(422, lambda: node().endpoint.create(app.uid, EndpointIn(url=url)))
        assert any("url" in item.loc for item in error.detail), error
    node().endpoint.delete(app.uid, endpoint.id)
    assert refused(404, lambda: node().endpoint.get(app.uid, endpoint.id)).code == "not_found"


def operational(node, run, came):
    """The owner is told when deliveries are given up."""
    watch = node().operational_webhook.endpoint.create(
        OperationalWebhookEndpointIn(url=came.url(f"/ops-{run}"), event_types=["message.attempt.exhausted"])
    )
    secret = node().operational_webhook.endpoint.get_secret(watch.id).key
    app = node().application.create(ApplicationIn(name="failing", uid=f"failing-{run}"))
    endpoint = node().endpoint.create(app.uid, EndpointIn(url=came.url("/fail")))
    sent = node().message.create(app.uid, MessageIn(event_type="a", event_id=f"lost-{run}", payload={"n": 1}))
    (told,) = came.wait(f"/ops-{run}", 1)
    assert verifies(secret, told), told
    body = json.loads(told[1])
    assert body["type"] == "message.attempt.exhausted", body
    named = {name: body["data"][name] for name in ("appId", "appUid", "msgId", "msgEventId", "endpointId")}
    assert named == {
        "appId": app.id,
        "appUid": app.uid,
        "msgId": sent.id,
        "msgEventId": f"lost-{run}",
        "endpointId": endpoint.id,
    }, body
    node().operational_webhook.endpoint.delete(watch.id)


def main(urls):
    clients = cycle([Svix("token", SvixOptions(server_url=url)) for url in urls])

    def node():
        return next(clients)

    run = f"{time.time_ns():x}"
    came = Deliveries()
    app = applications(node, run)
    pages(node, run)
    event_types(node, run)
    endpoint, sent, secret = messages(node, run, app, came)
    attempts(node, app, endpoint, sent)
    secrets(node, run, app, endpoint, secret, came)
    endpoint_changes(node, app, endpoint, came)
    operational(node, run, came)
    node().application.delete(app.uid)
    refused(404, lambda: node().message.create(app.uid, MessageIn(event_type="a", payload={})))


main(sys.argv[1:])
