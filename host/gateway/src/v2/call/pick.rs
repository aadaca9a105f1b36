//! Selection of requested outputs.

use super::super::super::error::ApiError;
use weir_inference::Tensor;
use weir_types::ErrorCode;

/// Selects the requested outputs of a function, which always returns all of its outputs.
pub(super) fn pick(
    mut outputs: Vec<(String, Tensor)>,
    wanted: &[String],
) -> Result<Vec<(String, Tensor)>, ApiError> {
    let take = |name: &String| {
        let place = outputs.iter().position(|(given, _)| given == name);
        place.map(|place| outputs.swap_remove(place)).ok_or_else(|| {
            let text = format!("the function gave no output {name:?}");
            ApiError::new(ErrorCode::InvalidRequest, text)
        })
    };
    wanted.iter().map(take).collect()
}
