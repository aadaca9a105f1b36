//! What the scheduler is told by the node's settings.

use super::NodeConfig;
use anyhow::{Context, Result};
use weir_scheduler::{Settings, Setup};

impl NodeConfig {
    /// What the node's scheduler is made of.
    ///
    /// # Errors
    /// If a tenant's limits are such that nothing of it could ever run.
    pub(crate) fn scheduler(&self) -> Result<Setup> {
        self.tenant_default.check().context("[node.tenant_default]")?;
        for (tenant, limits) in &self.tenants {
            limits.check().with_context(|| format!("[node.tenants.{tenant}]"))?;
        }
        let settings = Settings {
            tenants: self.tenants.clone(),
            tenant_default: self.tenant_default.clone(),
            slo: self.slo.clone(),
            network: self.network,
            ..Settings::default()
        };
        Ok(Setup { policy: self.policy, options: self.policy_options.clone(), settings })
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
    fn settings_say_what_tenants_may_use_and_how_a_policy_goes_about_it() {
        let text = r#"
            policy = "lalb-o3"
            [policy_options]
            o3_limit = 5
            victims = "least_recently_used"
            [tenant_default]
            running_max = 8
            [tenants.acme]
            weight = 3
            device_share_max = 0.5
            resident_bytes_max = 1073741824
        "#;
        let Setup { options, settings, .. } = config(text).scheduler().unwrap();
        assert_eq!((options.o3_limit, options.victims), (5, Some(VictimKind::LeastRecentlyUsed)));
        let acme = TenantLimits {
            weight: 3,
            device_share_max: 0.5,
            resident_bytes_max: 1 << 30,
            ..TenantLimits::default()
        };
        assert_eq!(settings.tenants, [(TenantId::new("acme").unwrap(), acme)].into());
        assert_eq!(settings.tenant_default, TenantLimits { running_max: 8, ..TenantLimits::default() });
        // What `weir config` prints can be read again.
        assert_eq!(config(&toml::to_string(&config(text)).unwrap()), config(text));
        assert_eq!(config(&toml::to_string(&NodeConfig::default()).unwrap()), NodeConfig::default());
    }

    #[test]
    fn limits_under_which_nothing_runs_are_refused_with_where_they_are() {
        for (text, why) in [
            ("[tenants.acme]\nweight = 0", "weight"),
            ("[tenants.acme]\nrunning_max = 0", "running_max"),
            ("[tenants.acme]\ndevice_share_max = 0.0", "device_share_max"),
            ("[tenants.acme]\ndevice_share_max = nan", "device_share_max"),
            ("[tenants.acme]\ndevice_share_max = 1.5", "device_share_max"),
        ] {
            let error = format!("{:#}", config(text).scheduler().unwrap_err());
            assert!(error.contains("[node.tenants.acme]") && error.contains(why), "{text}: {error}");
        }
        assert!(toml::from_str::<NodeConfig>("[tenants.acme]\nwieght = 2").is_err());
    }
}
