module {{ module_name }}

go 1.24

require github.com/weir-platform/weir/guest-sdk/go v0.0.0

// The SDK came with the project.
replace github.com/weir-platform/weir/guest-sdk/go => ./sdk
