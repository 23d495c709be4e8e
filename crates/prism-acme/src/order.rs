//! One order: from the account to the certificate.
//!
//! Not here: when, and by which node (`keeper.rs`).

use std::time::Duration;

use anyhow::{Context, bail};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use prism_config::Acme;
use prism_membership::AcmeRecords;
use prism_tls::accept::Certificates;

use crate::http::Https;
use crate::lock::Lock;
use crate::records::{self, ACCOUNT, Issued, SOURCE};
use crate::schedule::renewal_s;

/// Time from the record of a challenge's answer to the authority's question. Every node hears of
/// the record within a few milliseconds.
const HEARD_IN: Duration = Duration::from_secs(1);
/// The first pause between two questions whether the authority is ready; each pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest time of the authority's check, and of its signature.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest token of a challenge in bytes.
const MAX_TOKEN_BYTES: usize = 256;
/// The authority does not know the account, for example because it has lost its data.
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Orders a certificate, while `lock` is held.
///
/// # Errors
/// The reason for the administrator.
pub(crate) async fn order(
    config: &Acme,
    records: &AcmeRecords,
    lock: &Lock<'_>,
) -> anyhow::Result<Issued> {
    let account = account(config, records, lock).await?;
    let names: Vec<_> = config
        .domains
        .iter()
        .cloned()
        .map(Identifier::Dns)
        .collect();
    let order = account.new_order(&NewOrder::new(&names)).await;
    let mut order = match order {
        Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(UNKNOWN_ACCOUNT) => {
            lock.change(&[lock.delete(ACCOUNT)]).await?;
            return Err(Error::Api(problem)).context("the next try makes another account");
        }
        order => order.context("the authority refuses the order")?,
    };
    prove(&mut order, lock).await?;
    let key = order.finalize().await;
    let key = key.context("the authority refuses to sign")?;
    let chain = order.poll_certificate(&patience()).await;
    let chain = chain.context("the authority has not signed")?;
    checked(config, chain, key)
}

/// The account of the records, or a new one.
async fn account(config: &Acme, records: &AcmeRecords, lock: &Lock<'_>) -> anyhow::Result<Account> {
    let https = Box::new(Https::new(config.ca_file.as_deref())?);
    let builder = Account::builder_with_http(https);
    if let Some(credentials) = records::account(records, &config.directory) {
        let account = builder.from_credentials(credentials).await;
        return account.context("cannot reach the authority");
    }
    let contact: Vec<_> = config.contact.iter().map(String::as_str).collect();
    let wanted = NewAccount {
        contact: &contact,
        terms_of_service_agreed: config.terms_agreed,
        only_return_existing: false,
    };
    let directory = config.directory.clone();
    let made = builder.create(&wanted, directory.clone(), None).await;
    let (account, credentials) = made.context("cannot make an account at the authority")?;
    let record = records::Account {
        directory,
        credentials,
    };
    lock.change(&[lock.put(ACCOUNT, &record)?]).await?;
    tracing::info!(
        authority = config.directory,
        "made an account for certificates by ACME"
    );
    Ok(account)
}

/// Proves to the authority that the names lead to this cluster.
async fn prove(order: &mut Order, lock: &Lock<'_>) -> anyhow::Result<()> {
    let mut has_open = false;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.context("the authority refuses the order")?;
        // The authority may remember an earlier proof.
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        has_open = true;
        let name = authorization.identifier().to_string();
        let challenge = authorization.challenge(ChallengeType::Http01);
        let challenge = challenge
            .with_context(|| format!("the authority has no challenge http-01 for {name}"))?;
        let token = &challenge.token;
        if !is_token(token) {
            bail!("the authority has sent a malformed token for {name}");
        }
        let answer = challenge.key_authorization();
        lock.publish_token(token, answer.as_str()).await?;
    }
    if has_open {
        tokio::time::sleep(HEARD_IN).await;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Pending
                && let Some(mut challenge) = authorization.challenge(ChallengeType::Http01)
            {
                let told = challenge.set_ready().await;
                told.context("the authority refuses the challenge")?;
            }
        }
    }
    match order.poll_ready(&patience()).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => bail!(reason(order).await),
        Err(error) => Err(error).context("the authority does not accept the proof"),
    }
}

/// The reason why an order is invalid.
async fn reason(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        let problems = state.challenges.iter().filter_map(|one| one.error.as_ref());
        let details = problems.filter_map(|problem| problem.detail.clone());
        reasons.extend(details.map(|detail| format!("{name}: {detail}")));
    }
    if reasons.is_empty() {
        "the authority gives no reason why it refuses the proof".into()
    } else {
        format!("the authority refuses the proof for {}", reasons.join("; "))
    }
}

/// A certificate that frontends can serve for all names.
fn checked(config: &Acme, chain: String, key: String) -> anyhow::Result<Issued> {
    let mut issued = Issued {
        directory: config.directory.clone(),
        chain,
        key,
        renew_s: 0,
    };
    let chain = issued.chain.as_bytes();
    let key = issued.key.as_bytes();
    let served = Certificates::load(Vec::new())?.give(SOURCE, chain, key);
    served.context("the authority has sent a certificate that cannot be served")?;
    let certificate = issued.certificate()?;
    let mut domains = config.domains.iter();
    if let Some(name) = domains.find(|name| !certificate.covers(name)) {
        bail!("the authority has sent a certificate without {name}");
    }
    issued.renew_s = renewal_s(certificate.begin_s, certificate.end_s, fastrand::u64(..));
    Ok(issued)
}

fn patience() -> RetryPolicy {
    let policy = RetryPolicy::new().initial_delay(FIRST_PAUSE);
    policy.timeout(PATIENCE)
}

/// Whether a text is a token as RFC 8555 has it (section 8.1), which is a part of a path.
pub(crate) fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=MAX_TOKEN_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_part_of_a_path() {
        assert!(is_token("LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0"));
        for text in ["", "..", "a/b", "a b", "a%2e", &"a".repeat(257)] {
            assert!(!is_token(text), "{text}");
        }
    }

    #[test]
    fn only_a_certificate_that_can_be_served_for_all_names_is_taken() {
        let made = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
            let made = rcgen::generate_simple_self_signed(names).ok();
            let made = made.map(|made| (made.cert.pem(), made.signing_key.serialize_pem()));
            made.unwrap_or_default()
        };
        let config = Acme {
            domains: vec!["a.example".into(), "b.example".into()],
            ..Acme::default()
        };
        let (chain, key) = made(&["b.example", "A.example"]);
        let issued = checked(&config, chain.clone(), key).ok();
        assert!(issued.is_some_and(|issued| issued.renew_s > 0));
        let (other, other_key) = made(&["a.example"]);
        for (chain, key, expected) in [
            (chain.clone(), other_key.clone(), "is not the key of"),
            (other, other_key, "without b.example"),
            (String::new(), String::new(), "no certificate in PEM"),
        ] {
            let error = checked(&config, chain, key).err();
            let error = error.map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(error.contains(expected), "{error}");
        }
    }
}
