module images-go

go 1.24

require github.com/weir-platform/weir/guest-sdk/go v0.0.0

replace github.com/weir-platform/weir/guest-sdk/go => ../../guest-sdk/go
