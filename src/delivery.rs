//! Sends what the outbox holds, after the commit of its event: one task, at most one message under way to each
//! receiver, so that one that is slow or down delays nothing else. Messages are those of Standard Webhooks.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sha2::Sha256;
use tokio::task::JoinSet;

use crate::config::Webhook;
use crate::failpoint;
use crate::random;
use crate::store::hub::Topic;
use crate::store::outbox::{self, Due};
use crate::store::{Error, Store};

/// How long a receiver may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How much of its answer is read, so that the connection can be used again.
const ANSWER_BYTES: usize = 64 << 10;
/// How soon the outbox is looked at again after it could not be read or marked.
const RETRY: Duration = Duration::from_secs(1);

type Sender = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Sends to every receiver, for ever. Nothing to do costs nothing.
pub async fn run(store: Store) -> std::convert::Infallible {
    let https = HttpsConnectorBuilder::new().with_webpki_roots().https_or_http().enable_http1().build();
    let sender: Sender = Client::builder(TokioExecutor::new()).build(https);
    let mut receivers = JoinSet::new();
    for webhook in store.settings().webhooks.clone() {
        receivers.spawn(serve(store.clone(), sender.clone(), webhook));
    }
    loop {
        match receivers.join_next().await {
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The store is closed.
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// Sends one receiver's messages, one after the other.
async fn serve(store: Store, sender: Sender, webhook: Webhook) {
    loop {
        let waiter = store.hub().wait_for(Topic::Outbox);
        let (name, now) = (webhook.name.clone(), store.clock().now());
        let pause = match store.read(move |conn| outbox::next(conn, &name, now)).await {
            Ok(Ok(due)) => {
                failpoint!("outbox.before_send");
                let outcome = send(&store, &sender, &webhook, &due).await;
                failpoint!("outbox.after_send");
                match keep(&store, due, outcome).await {
                    Ok(()) => {
                        failpoint!("outbox.after_mark");
                        continue;
                    }
                    Err(Error::Stopping) => return,
                    Err(error) => {
                        // It will be sent again, with the same id: the receiver can tell.
                        log::error!("cannot mark a notification as sent cause={error}");
                        RETRY
                    }
                }
            }
            Ok(Err(next)) => next.map_or(Duration::from_secs(3600), |next| {
                Duration::from_millis(u64::try_from(next - now).unwrap_or(0).clamp(10, 3_600_000))
            }),
            Err(error) => {
                log::error!("cannot read the outbox cause={error}");
                RETRY
            }
        };
        let _ = tokio::time::timeout(pause, waiter.told()).await;
    }
}

async fn keep(store: &Store, due: Due, outcome: Result<(), String>) -> Result<(), Error> {
    if let Err(error) = &outcome {
        log::warn!("a notification was not delivered id={} webhook={} cause={error:?}", due.id, due.webhook);
    }
    let jitter = f64::from(u16::from_le_bytes(random::bytes())) / f64::from(u16::MAX);
    store.write(move |tx| outbox::mark(tx, due.id, &outcome, jitter)).await
}

/// Posts one message; whatever is not 2xx in time is an error, in words for the list.
async fn send(store: &Store, sender: &Sender, webhook: &Webhook, due: &Due) -> Result<(), String> {
    let timestamp = (store.clock().now() + store.clock().offset()) / 1000;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&webhook.url)
        .header("content-type", "application/json")
        .header("user-agent", concat!("mediator/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", &due.message_id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", sign(webhook.secret.bytes(), &due.message_id, timestamp, &due.payload))
        .body(Full::new(Bytes::from(due.payload.clone())))
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.request(request).await.map_err(|error| crate::client::chain(&error))?;
        let status = response.status();
        // Read and forgotten; too much of it only costs the connection.
        let _ = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        // A redirect is not followed: the receiver is the one that was configured.
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    };
    let late = |_| Err(format!("no answer within {} s", ANSWER_LIMIT.as_secs()));
    tokio::time::timeout(ANSWER_LIMIT, exchange).await.unwrap_or_else(late)
}

/// Signs as Standard Webhooks does: HMAC-SHA256 over id, timestamp and body.
fn sign(secret: &[u8], id: &str, timestamp: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length is a key");
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn a_signature_is_the_one_that_receivers_expect() {
        let secret = BASE64_STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = r#"{"test": 2432232314}"#;
        let signature = sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
