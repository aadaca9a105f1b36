//! Claims of a token: its tenant, subject and scopes.

use crate::config::Settings;
use jsonwebtoken::dangerous::insecure_decode_claims;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use weir_types::TenantId;
use weir_types::api::Scope;

/// Length limit of the subject, as OpenID Connect Core 1.0 has it.
const SUBJECT_LEN_MAX: usize = 255;

/// The holder of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcGrant {
    /// Tenant that the token acts for.
    pub tenant: TenantId,
    /// The provider's identifier of the person or service.
    pub subject: String,
    scopes: BTreeSet<Scope>,
}

/// The unverified part of a token that says for whom it is.
#[derive(Deserialize)]
struct Addressed {
    iss: String,
    aud: Audience,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// Checks whether a token claims to be of this issuer and for this audience, without its signature.
/// Tokens of others are no reason to ask the provider for keys.
pub(crate) fn check_addressed(token: &str, settings: &Settings) -> Result<(), &'static str> {
    let claims = insecure_decode_claims::<Addressed>(token);
    let Addressed { iss, aud } = claims.map_err(|_| "it has no claims iss and aud that can be read")?;
    if iss != settings.issuer {
        return Err("it is of another issuer");
    }
    let is_for_us = match aud {
        Audience::One(audience) => audience == settings.audience,
        Audience::Several(audiences) => audiences.contains(&settings.audience),
    };
    if is_for_us { Ok(()) } else { Err("it is for another audience") }
}

impl OidcGrant {
    /// Whether the token has `scope`.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    /// Reads the claims of a token whose signature, issuer, audience and times were checked.
    pub(crate) fn from_claims(claims: &Map<String, Value>, settings: &Settings) -> Result<Self, String> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let claim = &settings.tenant_claim;
        let tenant = text(claim).ok_or_else(|| format!("it has no claim {claim} with a tenant"))?;
        let tenant = settings.tenants.iter().find(|known| known.as_str() == tenant);
        let tenant = tenant
            .ok_or_else(|| format!("its claim {claim} names no tenant of gateway.access.oidc.tenants"))?;
        let tenant = tenant.clone();
        let subject = text("sub").filter(|subject| !subject.is_empty() && subject.len() <= SUBJECT_LEN_MAX);
        let subject = subject.ok_or("it has no claim sub, or a long one")?.to_owned();
        let scopes = match claims.get(&settings.scope_claim) {
            Some(Value::String(list)) => list.split_whitespace().collect(),
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let scopes = scopes.into_iter().filter_map(|scope| {
            let name = scope.strip_prefix(&*settings.scope_prefix)?;
            Scope::ALL.into_iter().find(|scope| scope.as_str() == name)
        });
        Ok(Self { tenant, subject, scopes: scopes.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grant(claims: &Value, scope_claim: &str) -> Result<OidcGrant, String> {
        let settings = Settings {
            issuer: String::new(),
            audience: String::new(),
            tenants: vec![TenantId::new("acme").unwrap()],
            tenant_claim: "weir_tenant".into(),
            scope_claim: scope_claim.into(),
            scope_prefix: "weir:".into(),
        };
        OidcGrant::from_claims(claims.as_object().unwrap(), &settings)
    }

    #[test]
    fn scopes_are_read_from_texts_and_arrays() {
        let claims = json!({
            "sub": "u1", "weir_tenant": "acme", "scope": "openid weir:invoke weir:fly invoke",
            "roles": ["weir:read", 7, "weir:deploy"],
        });
        let scopes = |claim: &str| grant(&claims, claim).unwrap().scopes.into_iter().collect::<Vec<_>>();
        assert_eq!(scopes("scope"), [Scope::Invoke]);
        assert_eq!(scopes("roles"), [Scope::Deploy, Scope::Read]);
        assert_eq!(scopes("none"), []);
        let admin =
            grant(&json!({"sub": "u", "weir_tenant": "acme", "scope": "weir:admin"}), "scope").unwrap();
        assert!(Scope::ALL.into_iter().all(|scope| admin.allows(scope)));
    }

    #[test]
    fn token_needs_a_tenant_and_a_subject() {
        for (claims, expected) in [
            (json!({"sub": "u1"}), "no claim weir_tenant"),
            (json!({"sub": "u1", "weir_tenant": ["acme"]}), "no claim weir_tenant"),
            (json!({"sub": "u1", "weir_tenant": "beta"}), "its claim weir_tenant names no tenant"),
            (json!({"weir_tenant": "acme"}), "no claim sub"),
            (json!({"weir_tenant": "acme", "sub": "x".repeat(256)}), "no claim sub"),
        ] {
            let error = grant(&claims, "scope").unwrap_err();
            assert!(error.contains(expected), "{claims}: {error}");
        }
    }
}
