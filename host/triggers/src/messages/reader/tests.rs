use super::*;
use weir_types::ErrorCode;

#[test]
fn requests_that_may_pass_later_are_repeated() {
    for code in
        [ErrorCode::AsyncQueueFull, ErrorCode::FunctionNotFound, ErrorCode::Unavailable, ErrorCode::DiskFull]
    {
        assert!(!is_lasting(code), "{code:?}");
    }
    for code in [ErrorCode::BodyTooLarge, ErrorCode::InvalidRequest] {
        assert!(is_lasting(code), "{code:?}");
    }
}
