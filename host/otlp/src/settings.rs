//! Settings of the export: those of the node's configuration, and the standard environment
//! variables of OpenTelemetry where the configuration has none.

use crate::client::Endpoint;
use crate::{OtlpConfig, OtlpError, OtlpProtocol};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::collections::BTreeMap;
use std::time::Duration;
use weir_storage::read_private_file;

/// Resolved settings of the export.
#[derive(Debug)]
pub struct OtlpSettings {
    pub(crate) endpoint: Endpoint,
    pub(crate) timeout: Duration,
    pub(crate) spans_interval: Duration,
    pub(crate) queue_bytes_max: u64,
    pub(crate) metrics_interval: Option<Duration>,
    pub(crate) resource: BTreeMap<String, String>,
}

impl OtlpSettings {
    /// Resolves the settings; none if no collector is configured. `env` looks up environment
    /// variables. Reads files.
    ///
    /// # Errors
    /// A value or a file is invalid.
    pub fn resolve(
        config: &OtlpConfig,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, OtlpError> {
        // An empty variable counts as unset, as OpenTelemetry specifies.
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let Some(url) = config.endpoint.clone().or_else(|| env("OTEL_EXPORTER_OTLP_ENDPOINT")) else {
            return Ok(None);
        };
        if env("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let protocol = match (config.protocol, env("OTEL_EXPORTER_OTLP_PROTOCOL")) {
            (Some(protocol), _) => protocol,
            (None, None) => OtlpProtocol::Grpc,
            (None, Some(named)) => match named.as_str() {
                "grpc" => OtlpProtocol::Grpc,
                "http/protobuf" => OtlpProtocol::Http,
                _ => return Err(OtlpError::Protocol(named)),
            },
        };
        let timeout_ms = match env("OTEL_EXPORTER_OTLP_TIMEOUT") {
            Some(text) if config.timeout_ms == OtlpConfig::default().timeout_ms => {
                text.parse().map_err(|_| OtlpError::Timeout(text))?
            }
            _ => config.timeout_ms,
        };
        let headers = match &config.headers_file {
            Some(path) => {
                let text = read_private_file(path)
                    .map_err(|source| OtlpError::HeadersFile { path: path.clone(), source })?;
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                headers(lines.map(|line| line.split_once(':').map(|(name, value)| (name, value.to_owned()))))?
            }
            None => {
                let text = env("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
                let decoded = |(name, value)| (name, percent_decoded(value));
                headers(pairs(&text).map(|pair| pair.split_once('=').map(decoded)))?
            }
        };
        let ca = config.ca.clone().or_else(|| env("OTEL_EXPORTER_OTLP_CERTIFICATE").map(Into::into));
        let ca = ca.map(|path| {
            std::fs::read(&path).map_err(|source| OtlpError::CaFile { path: path.clone(), source })
        });
        let mut resource = BTreeMap::new();
        if let Some(text) = env("OTEL_RESOURCE_ATTRIBUTES") {
            for pair in pairs(&text) {
                let (key, value) = pair.split_once('=').ok_or_else(|| OtlpError::Resource(text.clone()))?;
                resource.insert(key.trim().to_owned(), percent_decoded(value.trim()));
            }
        }
        resource.extend(env("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
        resource.extend(config.resource.clone());
        Ok(Some(Self {
            endpoint: Endpoint { url, protocol, headers, ca: ca.transpose()? },
            timeout: Duration::from_millis(timeout_ms.max(1)),
            spans_interval: Duration::from_millis(config.spans_interval_ms.max(1)),
            queue_bytes_max: config.queue_bytes_max,
            metrics_interval: (config.metrics_interval_ms > 0)
                .then(|| Duration::from_millis(config.metrics_interval_ms)),
            resource,
        }))
    }
}

/// The elements of a list, separated by commas.
fn pairs(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|pair| !pair.is_empty())
}

fn headers<'t>(pairs: impl Iterator<Item = Option<(&'t str, String)>>) -> Result<HeaderMap, OtlpError> {
    let mut headers = HeaderMap::new();
    for (index, pair) in pairs.enumerate() {
        let invalid = || OtlpError::Header(index + 1);
        let (name, value) = pair.ok_or_else(invalid)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Decodes `%XX`; other text stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = hex.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn resolve(config: &OtlpConfig, env: &[(&str, &str)]) -> Result<Option<OtlpSettings>, OtlpError> {
        let env: BTreeMap<_, _> = env.iter().copied().collect();
        OtlpSettings::resolve(config, |name| env.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn environment_fills_in_settings_that_are_not_set() {
        assert!(resolve(&OtlpConfig::default(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%3D, x=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "7"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=ignored,team=a%2Cb"),
            ("OTEL_SERVICE_NAME", "named"),
        ];
        let found = resolve(&OtlpConfig::default(), &env).unwrap().unwrap();
        assert_eq!(found.endpoint.url, "http://env:4318");
        assert_eq!(found.endpoint.protocol, OtlpProtocol::Http);
        assert_eq!(found.endpoint.headers["api-key"], "a b=");
        assert_eq!(found.endpoint.headers["x"], "1");
        assert_eq!(found.timeout, Duration::from_millis(7));
        assert_eq!(found.resource["service.name"], "named");
        assert_eq!(found.resource["team"], "a,b");
        let config = OtlpConfig {
            endpoint: Some("http://file:1".to_owned()),
            protocol: Some(OtlpProtocol::Grpc),
            timeout_ms: 8,
            resource: BTreeMap::from([("service.name".to_owned(), "file".to_owned())]),
            ..OtlpConfig::default()
        };
        let found = resolve(&config, &env).unwrap().unwrap();
        assert_eq!((&*found.endpoint.url, found.endpoint.protocol), ("http://file:1", OtlpProtocol::Grpc));
        assert_eq!(found.timeout, Duration::from_millis(8));
        assert_eq!(found.resource["service.name"], "file");
        assert!(resolve(&config, &[("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
    }

    #[test]
    fn invalid_variables_are_named() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "no-value"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_RESOURCE_ATTRIBUTES", "key"),
        ] {
            let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:1"), (name, value)];
            let error = resolve(&OtlpConfig::default(), &env).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn headers_come_from_a_file_that_only_its_owner_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        std::fs::write(&path, "Authorization: Bearer secret\n\nx-tenant: a\n").unwrap();
        let config = OtlpConfig {
            endpoint: Some("http://h:1".to_owned()),
            headers_file: Some(path.clone()),
            ..OtlpConfig::default()
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let found = resolve(&config, &[]).unwrap().unwrap();
        assert_eq!(found.endpoint.headers["authorization"], "Bearer secret");
        assert!(!format!("{found:?}").contains("secret"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(resolve(&config, &[]).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "x-good: 1\nsecret without a name\n").unwrap();
        let error = resolve(&config, &[]).unwrap_err().to_string();
        assert!(error.contains("header 2") && !error.contains("secret"), "{error}");
    }
}
