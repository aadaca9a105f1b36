//! Trust of a joining node in the authority.

use super::{JoinToken, provider};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Accepts only the authority that a join token names, and keeps its certificate.
///
/// The authority sends its own certificate behind that of its server.
#[derive(Debug)]
pub(in super::super) struct PinnedAuthority {
    token: JoinToken,
    found: Mutex<Option<CertificateDer<'static>>>,
}

impl PinnedAuthority {
    pub(in super::super) fn new(token: JoinToken) -> Arc<Self> {
        Arc::new(Self { token, found: Mutex::default() })
    }

    /// The authority's certificate, after a handshake.
    pub(in super::super) fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.found.lock().clone()
    }
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = chain.iter().find(|certificate| self.token.is_of(certificate));
        let pinned = pinned.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
        let verified = verifier.verify_server_cert(server, &[], name, ocsp_response, now)?;
        *self.found.lock() = Some(pinned.clone().into_owned());
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
