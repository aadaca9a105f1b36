//! Scheduler setup from the node's settings.

use super::{NodeConfig, TenantConfig};
use anyhow::{Context, Result, ensure};
use weir_scheduler::{Settings, Setup};
use weir_types::TenantId;

impl NodeConfig {
    /// Returns the setup of the node's scheduler.
    ///
    /// # Errors
    /// If a tenant's limits prevent all of its calls from running, or a percentage is above 100.
    pub(crate) fn scheduler_setup(&self) -> Result<Setup> {
        let percent = self.scheduler.required_percent_max;
        ensure!(percent <= 100, "[node.scheduler]: required_percent_max = {percent} is above 100");
        check(&self.tenant_default).context("[node.tenant_default]")?;
        for (name, tenant) in &self.tenants {
            check(tenant).with_context(|| format!("[node.tenants.{name}]"))?;
        }
        let limits = |(name, tenant): (&TenantId, &TenantConfig)| (name.clone(), tenant.limits.clone());
        let settings = Settings {
            tenants: self.tenants.iter().map(limits).collect(),
            tenant_default: self.tenant_default.limits.clone(),
            ..Settings::default()
        };
        Ok(self.scheduler.setup(settings))
    }
}

fn check(tenant: &TenantConfig) -> Result<()> {
    tenant.limits.check()?;
    Ok(tenant.quotas.check()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::{TenantLimits, VictimKind};

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
            requests_per_s = 100
            stored_bytes_max = 1
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
        let quotas = config(text).quotas();
        let acme = &quotas.tenants[&TenantId::new("acme").unwrap()];
        assert_eq!((acme.requests_per_s, acme.stored_bytes_max, acme.names_max), (Some(100), Some(1), None));
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
            ("[tenants.acme]\nrequests_per_s = 0", "requests_per_s"),
        ] {
            let error = format!("{:#}", config(text).scheduler_setup().unwrap_err());
            assert!(error.contains("[node.tenants.acme]") && error.contains(why), "{text}: {error}");
        }
        assert!(toml::from_str::<NodeConfig>("[tenants.acme]\nwieght = 2").is_err());
        let error = config("[scheduler]\nrequired_percent_max = 101").scheduler_setup().unwrap_err();
        assert!(error.to_string().contains("required_percent_max = 101"), "{error}");
    }
}
