module github.com/weir-platform/weir/guest-sdk/go

go 1.24
