//! Scheduler setup from the node's settings.

use super::NodeConfig;
use anyhow::{Context, Result};
use weir_scheduler::{Settings, Setup};

impl NodeConfig {
    /// Returns the setup of the node's scheduler.
    ///
    /// # Errors
    /// If a tenant's limits prevent all of its calls from running.
    pub(crate) fn scheduler_setup(&self) -> Result<Setup> {
        self.tenant_default.check().context("[node.tenant_default]")?;
        for (tenant, limits) in &self.tenants {
            limits.check().with_context(|| format!("[node.tenants.{tenant}]"))?;
        }
        let settings = Settings {
            tenants: self.tenants.clone(),
            tenant_default: self.tenant_default.clone(),
            ..Settings::default()
        };
        Ok(self.scheduler.setup(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::{TenantLimits, VictimKind};
    use weir_types::TenantId;

    fn config(text: &str) -> NodeConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn scheduler_settings_reach_the_scheduler() {
        let text = r#"
            [scheduler]
            policy = "lalb-o3"
            [scheduler.options]
            o3_limit = 5
            victims = "least_recently_used"
            [scheduler.slo]
            admission = false
            [scheduler.network]
            round_trip_ns = 7
            [tenant_default]
            running_max = 8
            [tenants.acme]
            weight = 3
            device_share_max = 0.5
            resident_bytes_max = 1073741824
        "#;
        let Setup { policy, options, settings } = config(text).scheduler_setup().unwrap();
        assert_eq!(policy.to_string(), "lalb-o3");
        assert_eq!((settings.slo.admission, settings.network.round_trip_ns), (false, 7));
        assert_eq!((options.o3_limit, options.victims), (5, Some(VictimKind::LeastRecentlyUsed)));
        let acme = TenantLimits {
            weight: 3,
            device_share_max: 0.5,
            resident_bytes_max: 1 << 30,
            ..TenantLimits::default()
        };
        assert_eq!(settings.tenants, [(TenantId::new("acme").unwrap(), acme)].into());
        assert_eq!(settings.tenant_default, TenantLimits { running_max: 8, ..TenantLimits::default() });
        // The output of `weir config` parses back to the same settings.
        assert_eq!(config(&toml::to_string(&config(text)).unwrap()), config(text));
        assert_eq!(config(&toml::to_string(&NodeConfig::default()).unwrap()), NodeConfig::default());
    }

    #[test]
    fn impossible_tenant_limits_are_rejected_with_their_path() {
        for (text, why) in [
            ("[tenants.acme]\nweight = 0", "weight"),
            ("[tenants.acme]\nrunning_max = 0", "running_max"),
            ("[tenants.acme]\ndevice_share_max = 0.0", "device_share_max"),
            ("[tenants.acme]\ndevice_share_max = nan", "device_share_max"),
            ("[tenants.acme]\ndevice_share_max = 1.5", "device_share_max"),
        ] {
            let error = format!("{:#}", config(text).scheduler_setup().unwrap_err());
            assert!(error.contains("[node.tenants.acme]") && error.contains(why), "{text}: {error}");
        }
        assert!(toml::from_str::<NodeConfig>("[tenants.acme]\nwieght = 2").is_err());
    }
}
